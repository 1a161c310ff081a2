//! IP addresses and ranges of them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Function, Style, no_overload};
use crate::policy_expression::meter::{Failure, Meter, Outcome};
use crate::policy_expression::value::Value;

pub(super) const FUNCTIONS: &[Function] = &[
    ("cidr", Style::Global, 1, 1),
    ("containsCIDR", Style::Member, 1, 1),
    ("containsIP", Style::Member, 1, 1),
    ("family", Style::Member, 0, 0),
    ("ip", Style::Global, 1, 1),
    ("ip", Style::Member, 0, 0),
    ("ip.isCanonical", Style::Member, 1, 1),
    ("isCIDR", Style::Global, 1, 1),
    ("isGlobalUnicast", Style::Member, 0, 0),
    ("isIP", Style::Global, 1, 1),
    ("isLinkLocalMulticast", Style::Member, 0, 0),
    ("isLinkLocalUnicast", Style::Member, 0, 0),
    ("isLoopback", Style::Member, 0, 0),
    ("isUnspecified", Style::Member, 0, 0),
    ("masked", Style::Member, 0, 0),
    ("prefixLength", Style::Member, 0, 0),
];

/// A range of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cidr {
    /// An address of the range.
    pub address: IpAddr,
    /// How many of its first bits all addresses of the range have.
    pub prefix: u8,
}

pub(super) fn call(name: &str, arguments: &[Value], _: &mut Meter<'_>) -> Outcome {
    match (name, arguments) {
        ("isIP", [Value::String(text)]) => Ok(parse_ip(text).is_ok().into()),
        ("ip", [Value::String(text)]) => parse_ip(text).map(Value::Ip).map_err(Failure::Error),
        ("ip.isCanonical", [Value::String(text)]) => {
            let address = parse_ip(text).map_err(Failure::Error)?;
            Ok((address.to_string() == text.as_ref()).into())
        }
        ("isCIDR", [Value::String(text)]) => Ok(Cidr::parse(text).is_ok().into()),
        ("cidr", [Value::String(text)]) => Cidr::parse(text)
            .map(Value::Cidr)
            .map_err(|error| network_error(&error)),
        (_, [Value::Ip(address)]) => property(name, *address).ok_or_else(|| no_overload(name, arguments)),
        ("ip", [Value::Cidr(cidr)]) => Ok(Value::Ip(cidr.address)),
        ("prefixLength", [Value::Cidr(cidr)]) => Ok(Value::Int(cidr.prefix.into())),
        ("masked", [Value::Cidr(cidr)]) => Ok(Value::Cidr(cidr.masked())),
        ("containsIP", [Value::Cidr(cidr), Value::Ip(address)]) => Ok(cidr.contains(*address).into()),
        ("containsIP", [Value::Cidr(cidr), Value::String(text)]) => {
            let address = parse_ip(text).map_err(|error| network_error(&error))?;
            Ok(cidr.contains(address).into())
        }
        ("containsCIDR", [Value::Cidr(cidr), Value::Cidr(other)]) => Ok(cidr.covers(other).into()),
        ("containsCIDR", [Value::Cidr(cidr), Value::String(text)]) => {
            let other = Cidr::parse(text).map_err(|error| network_error(&error))?;
            Ok(cidr.covers(&other).into())
        }
        _ => Err(no_overload(name, arguments)),
    }
}

fn network_error(error: &str) -> Failure {
    Failure::Error(format!(
        "network address parse error during conversion from string: {error}"
    ))
}

fn property(name: &str, address: IpAddr) -> Option<Value> {
    let is = match (name, address) {
        ("family", IpAddr::V4(_)) => return Some(Value::Int(4)),
        ("family", IpAddr::V6(_)) => return Some(Value::Int(6)),
        ("isUnspecified", address) => address.is_unspecified(),
        ("isLoopback", address) => address.is_loopback(),
        ("isLinkLocalUnicast", address) => is_link_local(address),
        ("isLinkLocalMulticast", IpAddr::V4(v4)) => v4.octets().starts_with(&[224, 0, 0]),
        ("isLinkLocalMulticast", IpAddr::V6(v6)) => v6.segments()[0] & 0xff0f == 0xff02,
        ("isGlobalUnicast", address) => {
            let broadcast = address == IpAddr::V4(Ipv4Addr::BROADCAST);
            !(broadcast
                || address.is_unspecified()
                || address.is_loopback()
                || address.is_multicast()
                || is_link_local(address))
        }
        _ => return None,
    };
    Some(is.into())
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

/// An address without zone; IPv4 within IPv6 is not allowed.
fn parse_ip(text: &str) -> Result<IpAddr, String> {
    let address: IpAddr = text
        .parse()
        .map_err(|_| format!("IP Address \"{text}\" parse error during conversion from string: ParseAddr(\"{text}\"): unable to parse IP"))?;
    match address {
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => {
            Err(format!("IPv4-mapped IPv6 address \"{text}\" is not allowed"))
        }
        address => Ok(address),
    }
}

impl Cidr {
    fn parse(text: &str) -> Result<Self, String> {
        let error = || format!("netip.ParsePrefix(\"{text}\"): no '/'");
        let (address, prefix) = text.split_once('/').ok_or_else(error)?;
        let address = parse_ip(address)?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let leading_zero = prefix.len() > 1 && prefix.starts_with('0');
        let prefix: u8 = prefix
            .parse()
            .ok()
            .filter(|length| *length <= bits && !leading_zero && !prefix.starts_with('+'))
            .ok_or_else(|| format!("netip.ParsePrefix(\"{text}\"): bad bits after slash: \"{prefix}\""))?;
        Ok(Self { address, prefix })
    }

    fn masked(self) -> Self {
        let address = match self.address {
            IpAddr::V4(v4) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from_bits(v4.to_bits() & mask))
            }
            IpAddr::V6(v6) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix)).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & mask))
            }
        };
        Self { address, ..self }
    }

    fn contains(self, address: IpAddr) -> bool {
        let other = Self { address, ..self };
        address.is_ipv4() == self.address.is_ipv4() && other.masked().address == self.masked().address
    }

    fn covers(self, other: &Self) -> bool {
        self.prefix <= other.prefix && self.contains(other.address)
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.address, self.prefix)
    }
}
