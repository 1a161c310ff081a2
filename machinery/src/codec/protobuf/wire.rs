//! Keys and values of protobuf fields.

use std::borrow::Cow;

use super::Malformed;

const VARINT: u64 = 0;
const FIXED_64: u64 = 1;
const BYTES: u64 = 2;
const GROUP: u64 = 3;
const END_OF_GROUP: u64 = 4;
const FIXED_32: u64 = 5;

/// Groups may be nested this deep. No message has any; they are skipped.
const MAX_GROUPS: u32 = 100;

/// The fields of a message one by one.
pub(super) struct Reader<'a>(&'a [u8]);

/// The encoded value of a field.
#[derive(Debug, Clone, Copy)]
pub(super) enum Part<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    /// Of a type that no message uses.
    Other(u64),
}

impl<'a> Part<'a> {
    /// The bytes of a field with this name.
    pub(super) fn bytes(self, field: &'static str) -> Result<&'a [u8], Malformed> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            Self::Varint(_) => Err(Malformed::WrongType { found: VARINT, field }),
            Self::Other(found) => Err(Malformed::WrongType { found, field }),
        }
    }

    /// The text of a field with this name; invalid UTF-8 is replaced, as when Go writes it as JSON.
    pub(super) fn text(self, field: &'static str) -> Result<Cow<'a, str>, Malformed> {
        self.bytes(field).map(String::from_utf8_lossy)
    }

    /// The number of a field with this name.
    pub(super) fn varint(self, field: &'static str) -> Result<u64, Malformed> {
        match self {
            Self::Varint(number) => Ok(number),
            Self::Bytes(_) => Err(Malformed::WrongType { found: BYTES, field }),
            Self::Other(found) => Err(Malformed::WrongType { found, field }),
        }
    }
}

impl<'a> Reader<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The next field; groups are skipped.
    pub(super) fn next(&mut self) -> Result<Option<(u64, Part<'a>)>, Malformed> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let (number, type_) = self.key()?;
        let part = match type_ {
            VARINT => Part::Varint(self.varint()?),
            BYTES => Part::Bytes(self.delimited()?),
            GROUP => {
                self.skip_group()?;
                Part::Other(type_)
            }
            END_OF_GROUP => return Err(Malformed::EndOfGroup),
            other => {
                self.skip_fixed(other)?;
                Part::Other(other)
            }
        };
        Ok(Some((number, part)))
    }

    fn key(&mut self) -> Result<(u64, u64), Malformed> {
        let key = self.varint()?;
        match key >> 3 {
            0 => Err(Malformed::IllegalNumber),
            number => Ok((number, key & 7)),
        }
    }

    fn skip_fixed(&mut self, type_: u64) -> Result<(), Malformed> {
        match type_ {
            FIXED_64 => self.take(8).map(drop),
            FIXED_32 => self.take(4).map(drop),
            other => Err(Malformed::IllegalType(other)),
        }
    }

    fn skip_group(&mut self) -> Result<(), Malformed> {
        let mut depth = 1_u32;
        while depth > 0 {
            match self.key()?.1 {
                VARINT => self.varint().map(drop)?,
                BYTES => self.delimited().map(drop)?,
                GROUP if depth == MAX_GROUPS => return Err(Malformed::TooDeep),
                GROUP => depth += 1,
                END_OF_GROUP => depth -= 1,
                other => self.skip_fixed(other)?,
            }
        }
        Ok(())
    }

    fn delimited(&mut self) -> Result<&'a [u8], Malformed> {
        let length = usize::try_from(self.varint()?).map_err(|_| Malformed::Truncated)?;
        self.take(length)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Malformed::Truncated)?;
        self.0 = rest;
        Ok(taken)
    }

    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first().ok_or(Malformed::Truncated)?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Malformed::Overflow)
    }
}

/// Appends a number.
pub(super) fn write_varint(mut value: u64, out: &mut Vec<u8>) {
    loop {
        // Masked to seven bits.
        let low = u8::try_from(value & 0x7f).unwrap_or_default();
        value >>= 7;
        if value == 0 {
            out.push(low);
            return;
        }
        out.push(low | 0x80);
    }
}

/// Appends the key of a field with a number as its value.
pub(super) fn write_varint_key(number: u64, out: &mut Vec<u8>) {
    write_varint(number << 3 | VARINT, out);
}

/// Appends the key of a field whose value is the `length` bytes that follow.
pub fn write_bytes_key(number: u64, length: usize, out: &mut Vec<u8>) {
    write_varint(number << 3 | BYTES, out);
    write_varint(length as u64, out);
}

/// The size of what [`write_bytes_key`] appends.
#[must_use]
pub fn key_bytes(number: u64, length: usize) -> usize {
    varint_bytes(number << 3) + varint_bytes(length as u64)
}

fn varint_bytes(value: u64) -> usize {
    let bits = 64 - (value | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}
