//! The rules of comments and documents: named subjects, and one idea a sentence.
//!
//! A sentence about "whoever is missing" makes its reader look for a subject. Pronouns and
//! semicolons are the part of a style that can be counted, so this counts them: in comments crate
//! by crate, and in each document outside of its tables and its code.

use super::source::Source;

/// Split, so that this file does not contain what it looks for.
const PRONOUNS: [&str; 5] = [
    concat!("w", "ho"),
    concat!("who", "ever"),
    concat!("wh", "om"),
    concat!("wh", "ose"),
    concat!("whom", "ever"),
];

/// Most pronouns of [`PRONOUNS`] in a thousand words of a crate's comments, or of a document.
const PRONOUNS_PER_THOUSAND: usize = 1;
/// Most semicolons in a thousand words of a crate's comments, or of a document.
const SEMICOLONS_PER_THOUSAND: usize = 4;

/// A shorter document may have as many as one of this many words.
const FEWEST_WORDS: usize = 1_000;

/// How a crate's comments, or a document, are written.
#[derive(Default)]
pub struct Prose {
    words: usize,
    pronouns: usize,
    semicolons: usize,
}

/// The folders with more pronouns or semicolons in their comments than the limits, in words.
pub fn problems(sources: &[Source]) -> Vec<String> {
    let folder = |source: &Source| source.path.split('/').next().unwrap_or_default().to_string();
    let mut folders: Vec<String> = sources.iter().map(folder).collect();
    folders.dedup();
    let judged = folders.iter().flat_map(|name| {
        let mut prose = Prose::default();
        sources.iter().filter(|it| folder(it) == *name).for_each(|it| prose.read(&it.text));
        prose.problems(&format!("the comments of {name}"))
    });
    judged.collect()
}

/// The documents with more pronouns or semicolons than the limits.
pub fn document_problems(documents: &[Source]) -> Vec<String> {
    let judged = documents.iter().flat_map(|document| {
        let mut prose = Prose::default();
        prose.read_document(&document.text);
        prose.words = prose.words.max(FEWEST_WORDS);
        prose.problems(&document.path)
    });
    judged.collect()
}

impl Prose {
    /// Counts the words of a file's comments, but for the code in them.
    pub fn read(&mut self, text: &str) {
        let mut is_code = false;
        for line in text.lines().filter_map(comment) {
            if line.trim_start().starts_with("```") {
                is_code = !is_code;
            } else if !is_code {
                self.count(line);
            }
        }
    }

    /// Counts the words of a document in Markdown, but for its code and its tables.
    pub fn read_document(&mut self, text: &str) {
        let mut is_code = false;
        for line in text.lines() {
            let start = line.trim_start();
            if start.starts_with("```") {
                is_code = !is_code;
            } else if !is_code && !start.starts_with('|') && !line.starts_with("    ") {
                self.count(line);
            }
        }
    }

    fn count(&mut self, line: &str) {
        self.words += line.split_whitespace().count();
        self.semicolons += line.matches(';').count();
        let words = line.split(|letter: char| !letter.is_alphanumeric());
        let is_pronoun = |word: &&str| PRONOUNS.contains(&word.to_lowercase().as_str());
        self.pronouns += words.filter(is_pronoun).count();
    }

    /// What is above its limit.
    pub fn problems(&self, name: &str) -> Vec<String> {
        let found = [
            (self.pronouns, PRONOUNS_PER_THOUSAND, "pronouns without a named subject"),
            (self.semicolons, SEMICOLONS_PER_THOUSAND, "semicolons"),
        ];
        let above =
            found.into_iter().filter(|(count, limit, _)| 1_000 * count > limit * self.words);
        let words = self.words;
        above
            .map(|(count, limit, what)| {
                format!("{name}: {count} {what} in {words} words, at most {limit} in 1,000")
            })
            .collect()
    }
}

/// The text of a comment that has the line for itself.
fn comment(line: &str) -> Option<&str> {
    let text = line.trim_start().strip_prefix("//")?;
    Some(text.strip_prefix(['/', '!']).unwrap_or(text))
}
