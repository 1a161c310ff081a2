//! Parses label and field selectors into the requirements that an authorizer sees. A selector that does not parse yields
//! no requirements: the check becomes broader, and the handler refuses the request afterwards.

use crate::host::{SelectorOperator, SelectorRequirement};

/// Requirements of a label selector; none when any part does not parse. Numeric comparisons are left out: reviews do not know them.
pub(crate) fn label_requirements(selector: &str) -> Vec<SelectorRequirement> {
    let mut requirements = Vec::new();
    for term in top_level_terms(selector) {
        let term = term.trim();
        if term.is_empty() {
            continue;
        }
        match label_requirement(term) {
            Some(Parsed::Requirement(requirement)) => requirements.push(requirement),
            Some(Parsed::Dropped) => {}
            None => return Vec::new(),
        }
    }
    requirements
}

/// Requirements of a field selector; none when any part does not parse.
pub(crate) fn field_requirements(selector: &str) -> Vec<SelectorRequirement> {
    let mut requirements = Vec::new();
    for term in escaped_terms(selector) {
        if term.is_empty() {
            continue;
        }
        let split = |operator: &str| term.split_once(operator);
        let (key, operator, value) = if let Some((key, value)) = split("!=") {
            (key, SelectorOperator::NotIn, value)
        } else if let Some((key, value)) = split("==").or_else(|| split("=")) {
            (key, SelectorOperator::In, value)
        } else {
            return Vec::new();
        };
        let Some(value) = unescape(value) else {
            return Vec::new();
        };
        requirements.push(SelectorRequirement {
            key: key.to_owned(),
            operator,
            values: vec![value],
        });
    }
    requirements
}

enum Parsed {
    Requirement(SelectorRequirement),
    Dropped,
}

/// Terms at commas outside parentheses.
fn top_level_terms(selector: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_usize;
    selector.split(move |character| {
        match character {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        character == ',' && depth == 0
    })
}

fn label_requirement(term: &str) -> Option<Parsed> {
    let requirement = |key: &str, operator, values| {
        is_key(key).then(|| {
            Parsed::Requirement(SelectorRequirement {
                key: key.to_owned(),
                operator,
                values,
            })
        })
    };
    if let Some(key) = term.strip_prefix('!') {
        return requirement(key.trim(), SelectorOperator::DoesNotExist, Vec::new());
    }
    if let Some(list) = term.strip_suffix(')') {
        let (head, list) = list.split_once('(')?;
        let mut words = head.split_whitespace();
        let (key, word) = (words.next()?, words.next()?);
        let operator = match word {
            "in" => SelectorOperator::In,
            "notin" => SelectorOperator::NotIn,
            _ => return None,
        };
        if words.next().is_some() {
            return None;
        }
        let mut values: Vec<String> = list.split(',').map(|value| value.trim().to_owned()).collect();
        values.sort();
        values.dedup();
        return values
            .iter()
            .all(|value| is_value(value))
            .then(|| requirement(key, operator, values))?;
    }
    for (sign, operator) in [
        ("!=", SelectorOperator::NotIn),
        ("==", SelectorOperator::In),
        ("=", SelectorOperator::In),
    ] {
        if let Some((key, value)) = term.split_once(sign) {
            let value = value.trim();
            return is_value(value).then(|| requirement(key.trim(), operator, vec![value.to_owned()]))?;
        }
    }
    if let Some((key, number)) = term.split_once(['<', '>']) {
        let fits = is_key(key.trim()) && number.trim().parse::<i64>().is_ok();
        return fits.then_some(Parsed::Dropped);
    }
    requirement(term, SelectorOperator::Exists, Vec::new())
}

fn is_key(key: &str) -> bool {
    !key.is_empty()
        && key
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte))
}

fn is_value(value: &str) -> bool {
    value.len() <= 63
        && value
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

/// Terms at commas that no backslash precedes.
fn escaped_terms(selector: &str) -> Vec<&str> {
    let mut terms = Vec::new();
    let (mut start, mut escaped) = (0, false);
    for (at, byte) in selector.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b',' => {
                terms.extend(selector.get(start..at));
                start = at + 1;
            }
            _ => {}
        }
    }
    terms.extend(selector.get(start..));
    terms
}

fn unescape(value: &str) -> Option<String> {
    let mut plain = String::with_capacity(value.len());
    let mut characters = value.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => match characters.next()? {
                escaped @ ('\\' | ',' | '=') => plain.push(escaped),
                _ => return None,
            },
            ',' | '=' => return None,
            character => plain.push(character),
        }
    }
    Some(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn print(requirements: &[SelectorRequirement]) -> String {
        let print =
            |r: &SelectorRequirement| format!("{} {} [{}]", r.key, r.operator.as_str(), r.values.join(" "));
        requirements.iter().map(print).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn label_selectors_become_requirements() {
        for (selector, expected) in [
            ("", ""),
            ("a=b", "a In [b]"),
            ("a==b,c != d", "a In [b]; c NotIn [d]"),
            ("x.io/a in (z, y),b notin (c)", "x.io/a In [y z]; b NotIn [c]"),
            ("a,!b", "a Exists []; b DoesNotExist []"),
            ("a>1,b=c", "b In [c]"),
            ("a=b,c in d", ""),
            ("a=b,=c", ""),
            ("a=$", ""),
        ] {
            assert_eq!(print(&label_requirements(selector)), expected, "{selector}");
        }
    }

    #[test]
    fn field_selectors_become_requirements() {
        for (selector, expected) in [
            ("metadata.name=x", "metadata.name In [x]"),
            ("a==b,c!=d", "a In [b]; c NotIn [d]"),
            ("a=x\\,y\\=z", "a In [x,y=z]"),
            ("a", ""),
            ("a=b=c", ""),
            ("a=\\x", ""),
        ] {
            assert_eq!(print(&field_requirements(selector)), expected, "{selector}");
        }
    }
}
