//! The `Warning` headers of a response.
//!
//! Texts are de-duplicated per request and share a budget of 4096 characters. If it is exceeded, each text is truncated to
//! 256 characters and texts that still do not fit are dropped, as in Kubernetes.

use std::sync::{Arc, Mutex, PoisonError};

use http::{HeaderMap, HeaderName, HeaderValue};

/// Maximum number of characters of all texts of a request.
const TOTAL_BUDGET: usize = 4096;
/// Maximum number of texts of a request.
const MAX_TEXTS: usize = 256;
/// Maximum number of characters of a text once the budget is exceeded.
const CUT: usize = 256;

/// The warnings of one request; clones share them.
#[derive(Clone, Debug, Default)]
pub struct Warnings(Arc<Mutex<Vec<String>>>);

impl Warnings {
    /// Adds a warning for the client. Empty and duplicate texts are ignored, and all after the first 256.
    pub fn add(&self, text: impl Into<String>) {
        let text = text.into();
        let mut texts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !text.is_empty() && texts.len() < MAX_TEXTS && !texts.contains(&text) {
            texts.push(text);
        }
    }

    /// The texts so far, not truncated.
    #[cfg(test)]
    pub(crate) fn texts(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Writes one `Warning: 299 - "text"` header per text.
    pub fn write_headers(&self, headers: &mut HeaderMap) {
        let texts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if texts.is_empty() {
            return;
        }
        let total: usize = texts.iter().map(|text| text.chars().count()).sum();
        let cut = if total > TOTAL_BUDGET { CUT } else { TOTAL_BUDGET };
        let mut left = TOTAL_BUDGET;
        for text in texts.iter() {
            let length = text.chars().count().min(cut);
            if length > left {
                break;
            }
            left -= length;
            if let Ok(value) = HeaderValue::from_bytes(header_text(text, cut).as_bytes()) {
                headers.append(HeaderName::from_static("warning"), value);
            }
        }
    }
}

/// Code 299, agent `-`, the text quoted; control characters are dropped.
fn header_text(text: &str, cut: usize) -> String {
    let mut header = String::with_capacity(text.len() + 10);
    header.push_str("299 - \"");
    for character in text.chars().take(cut).filter(|character| !character.is_control()) {
        if matches!(character, '"' | '\\') {
            header.push('\\');
        }
        header.push(character);
    }
    header.push('"');
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(texts: &[String]) -> Vec<String> {
        let warnings = Warnings::default();
        for text in texts {
            warnings.add(text.clone());
        }
        let mut headers = HeaderMap::new();
        warnings.write_headers(&mut headers);
        headers
            .get_all("warning")
            .iter()
            .map(|value| String::from_utf8(value.as_bytes().to_vec()).unwrap())
            .collect()
    }

    #[test]
    fn texts_are_quoted_and_sent_once() {
        let texts = ["a \"b\" \\c\nd", "plain", "plain", "", "ä"].map(str::to_owned);
        assert_eq!(
            headers(&texts),
            [r#"299 - "a \"b\" \\cd""#, r#"299 - "plain""#, r#"299 - "ä""#]
        );
    }

    #[test]
    fn long_texts_within_the_budget_are_not_truncated() {
        assert_eq!(headers(&["x".repeat(4096)])[0].len(), 4096 + 8);
    }

    #[test]
    fn texts_over_the_budget_are_truncated_and_the_rest_dropped() {
        let texts: Vec<String> = (0..40).map(|i| format!("{i:02}{}", "x".repeat(298))).collect();
        let sent = headers(&texts);
        assert_eq!(sent.len(), TOTAL_BUDGET / CUT);
        assert!(sent.iter().all(|header| header.len() == CUT + 8));
    }
}
