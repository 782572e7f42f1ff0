//! Text cut into samples, with a byte as a token.
//!
//! Samples to validate with come from the held-out bytes in the same way. There may be none.

use std::any::Any;
use std::sync::Arc;

use everstep_kernels::compute::Batch;

use super::text::{Text, TextError};
use super::windows::Windows;
use super::{DataError, Dataset};

/// The windows of a text.
#[derive(Clone)]
pub struct TextSamples {
    text: Arc<Text>,
    windows: Windows,
}

impl TextSamples {
    /// The samples of a text.
    ///
    /// # Errors
    ///
    /// [`TextError::TooShort`] if the training text does not hold one sample.
    pub fn new(text: Arc<Text>, windows: Windows) -> Result<Self, TextError> {
        let (bytes, context) = (text.training().len(), windows.context());
        if bytes <= context {
            return Err(TextError::TooShort { bytes, context });
        }
        Ok(Self { text, windows })
    }

    fn append(&self, bytes: &[u8], index: u64, batch: &mut Batch) {
        let range = self.windows.range(index);
        let window = &bytes[range.start as usize..range.end as usize];
        self.windows.append(window.iter().copied().map(u32::from), batch);
    }
}

impl Dataset for TextSamples {
    fn len(&self) -> u64 {
        self.windows.count(self.text.training().len() as u64)
    }

    fn fingerprint(&self) -> [u8; 32] {
        self.text.fingerprint()
    }

    fn fill(&self, index: u64, batch: &mut Batch) -> Result<(), DataError> {
        self.append(self.text.training(), index, batch);
        Ok(())
    }

    fn validation_len(&self) -> u64 {
        self.windows.count(self.text.held_out().len() as u64)
    }

    fn fill_validation(&self, index: u64, batch: &mut Batch) -> Result<(), DataError> {
        self.append(self.text.held_out(), index, batch);
        Ok(())
    }

    fn reusable(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        Some(self.text.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A text of which the last fifth is held out.
    fn text(content: &[u8]) -> Arc<Text> {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), content).expect("written");
        Arc::new(Text::load(&[file.path().to_path_buf()], 0.2).expect("text"))
    }

    /// Tokens and targets of all samples, as text.
    fn rows(
        len: u64,
        fill: impl Fn(u64, &mut Batch) -> Result<(), DataError>,
    ) -> Vec<(String, String)> {
        let read = |bytes: &[u32]| bytes.iter().map(|&byte| byte as u8 as char).collect();
        let row = |index| {
            let mut batch = Batch::default();
            fill(index, &mut batch).expect("text is in memory");
            assert_eq!(batch.rows, 1);
            (read(&batch.tokens), read(&batch.targets))
        };
        (0..len).map(row).collect()
    }

    fn named(rows: &[(&str, &str)]) -> Vec<(String, String)> {
        rows.iter().map(|(tokens, targets)| (tokens.to_string(), targets.to_string())).collect()
    }

    #[test]
    fn a_gpt_predicts_each_next_byte_of_windows_that_do_not_overlap() {
        let data = TextSamples::new(text(b"abcdefghijklmno"), Windows::gpt(3)).expect("samples");
        let training = rows(data.len(), |index, batch| data.fill(index, batch));
        assert_eq!(training, named(&[("abc", "bcd"), ("def", "efg"), ("ghi", "hij")]));
        let held_out =
            rows(data.validation_len(), |index, batch| data.fill_validation(index, batch));
        assert_eq!(held_out, named(&[]));
    }

    #[test]
    fn an_mlp_predicts_the_byte_after_a_window_at_every_place() {
        let data = TextSamples::new(text(b"abcdefghijklmno"), Windows::mlp(2)).expect("samples");
        let training = rows(data.len(), |index, batch| data.fill(index, batch));
        assert_eq!(training.len(), 10);
        assert_eq!(training[..2], named(&[("ab", "c"), ("bc", "d")]));
        assert_eq!(training[9..], named(&[("jk", "l")]));
        let held_out =
            rows(data.validation_len(), |index, batch| data.fill_validation(index, batch));
        assert_eq!(held_out, named(&[("mn", "o")]));
    }

    #[test]
    fn rows_are_appended() {
        let data = TextSamples::new(text(b"abcdefghijklmno"), Windows::gpt(3)).expect("samples");
        let mut batch = Batch::default();
        for index in [0, 2] {
            data.fill(index, &mut batch).expect("text is in memory");
        }
        assert_eq!((batch.rows, batch.tokens.len(), batch.targets.len()), (2, 6, 6));
        assert_eq!(batch.tokens[3..], [b'g', b'h', b'i'].map(u32::from));
    }

    #[test]
    fn one_sample_is_enough_and_less_is_refused() {
        // Of five bytes four are to train on.
        assert_eq!(TextSamples::new(text(b"abcde"), Windows::gpt(3)).expect("a sample").len(), 1);
        assert_eq!(TextSamples::new(text(b"abcde"), Windows::mlp(3)).expect("a sample").len(), 1);
        for error in [
            TextSamples::new(text(b"abcde"), Windows::gpt(4)).err().expect("an error"),
            TextSamples::new(text(b"abcde"), Windows::mlp(4)).err().expect("an error"),
        ] {
            let said = error.to_string();
            assert!(said.contains("4 bytes") && said.contains("takes 5"), "{said}");
        }
    }
}
