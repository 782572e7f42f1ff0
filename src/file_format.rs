//! The numbers of the formats of JSON files that the program writes and reads again.
//!
//! Keys are only ever added to such a file, and a reader passes over keys that it does not know. A
//! number rises when the meaning of a key changes.

use serde_json::Value;

/// The key of the number. A file without it is of the first format.
pub(crate) const FORMAT_KEY: &str = "format";

/// A file of a later format.
#[derive(Debug, thiserror::Error)]
#[error(
    "it has format {found}, and this build of Everstep reads format {newest}: use the build that \
     wrote it, or a later one"
)]
pub(crate) struct LaterFormat {
    found: Value,
    newest: u64,
}

/// Whether a build that writes the `newest` format reads this file.
///
/// # Errors
/// [`LaterFormat`], also if the number is none.
pub(crate) fn check(file: &Value, newest: u64) -> Result<(), LaterFormat> {
    match file.get(FORMAT_KEY) {
        None => Ok(()),
        Some(found) if found.as_u64().is_some_and(|found| (1..=newest).contains(&found)) => Ok(()),
        Some(found) => Err(LaterFormat { found: found.clone(), newest }),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn i23_a_file_of_a_later_format_is_refused_by_its_number() {
        for known in [json!({}), json!({ "format": 1 }), json!({ "format": 2, "new": 3 })] {
            assert!(check(&known, 2).is_ok(), "{known}");
        }
        for (unknown, number) in
            [(json!({ "format": 3 }), "3"), (json!({ "format": "a" }), "\"a\"")]
        {
            let words = check(&unknown, 2).expect_err("another format").to_string();
            let expected =
                format!("it has format {number}, and this build of Everstep reads format 2:");
            assert!(words.starts_with(&expected), "{words}");
        }
    }
}
