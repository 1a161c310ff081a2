//! Substitution of the variable `namespace`, which is a reserved word of CEL.
//!
//! Before parsing, every use of the variable is replaced by an identifier of the same length, so that positions in
//! messages stay correct. Fields of that name and string literals are not changed.

const WORD: &str = "namespace";
const STAND_IN: &str = "__nspace_";

/// The identifier of a variable in the parsed source.
pub(super) fn stand_in(variable: &str) -> &str {
    if variable == WORD { STAND_IN } else { variable }
}

/// The message with the original name of the variable.
pub(super) fn restore(message: &str) -> String {
    message.replace(STAND_IN, WORD)
}

/// The source with the substituted identifier.
pub(super) fn replace(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let length = token_length(rest, first, &out);
        // A token has at least one character and ends at a character boundary.
        let (token, after) = rest.split_at_checked(length).unwrap_or((rest, ""));
        out.push_str(if token == WORD && !selects_field(&out) {
            STAND_IN
        } else {
            token
        });
        rest = after;
    }
    out
}

fn token_length(rest: &str, first: char, before: &str) -> usize {
    if is_word(first) {
        return rest.find(|c| !is_word(c)).unwrap_or(rest.len());
    }
    match first {
        '\'' | '"' => quoted_length(rest, first, is_raw(before)),
        '`' => rest
            .get(1..)
            .and_then(|inner| inner.find('`'))
            .map_or(rest.len(), |end| end + 2),
        '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
        other => other.len_utf8(),
    }
}

fn is_word(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '_'
}

/// Whether the text so far ends in a prefix that makes the following string literal raw.
fn is_raw(before: &str) -> bool {
    let prefix = before.rsplit(|c| !is_word(c)).next().unwrap_or_default();
    matches!(prefix.to_ascii_lowercase().as_str(), "r" | "br" | "rb")
}

fn quoted_length(rest: &str, quote: char, raw: bool) -> usize {
    let triple = quote.to_string().repeat(3);
    let end = if rest.starts_with(&triple) {
        triple
    } else {
        quote.to_string()
    };
    let mut at = end.len();
    while let Some(inner) = rest.get(at..) {
        let Some(next) = inner.chars().next() else { break };
        if inner.starts_with(&end) {
            return at + end.len();
        }
        at += next.len_utf8();
        if next == '\\' && !raw {
            at += inner.chars().nth(1).map_or(0, char::len_utf8);
        }
    }
    rest.len()
}

/// Whether the text so far ends in a dot, so that a field name follows.
fn selects_field(before: &str) -> bool {
    let before = before.trim_end();
    before.ends_with('.') || before.ends_with(".?")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_variable_is_replaced() {
        for source in [
            "pod.metadata.namespace == 'a'",
            "pod.metadata . namespace",
            "pod.?namespace",
            "namespaces + my_namespace + namespace1",
            "'namespace' + \"namespace\"",
            r#"'it\'s namespace' + "\\\" namespace""#,
            r"r'\' + r'namespace'",
            "'''a 'quoted' namespace''' + \"\"\"\n\"namespace\" \"\"\"",
            "b'namespace' + rb'namespace'",
            "pod.`namespace`",
            "true // namespace",
            "'open namespace",
            "é.namespace",
        ] {
            assert_eq!(replace(source), source);
        }
        for (source, expected) in [
            ("namespace", "__nspace_"),
            ("namespace.metadata.namespace", "__nspace_.metadata.namespace"),
            (
                "pod.a ?namespace.b : namespace.c",
                "pod.a ?__nspace_.b : __nspace_.c",
            ),
            ("'a' + namespace + 'b'", "'a' + __nspace_ + 'b'"),
            (r"'\\' + namespace", r"'\\' + __nspace_"),
            (r"r'\' + namespace", r"r'\' + __nspace_"),
            ("// c\nnamespace", "// c\n__nspace_"),
            (
                "{namespace: [namespace]}[namespace]",
                "{__nspace_: [__nspace_]}[__nspace_]",
            ),
            ("'' + namespace", "'' + __nspace_"),
            ("1 / namespace", "1 / __nspace_"),
        ] {
            assert_eq!(replace(source), expected);
            assert_eq!(restore(expected), source);
        }
    }
}
