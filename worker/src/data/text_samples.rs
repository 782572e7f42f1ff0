//! Text cut into samples, with a byte as a token: one way for `gpt`, one way for `mlp`.
//!
//! Samples to validate with come from the held-out bytes in the same way. There may be none.

use std::sync::Arc;

use everstep_kernels::compute::Batch;

use super::Dataset;
use super::text::{Text, TextError};

/// Windows of `context + 1` bytes. The first `context` bytes are a row's tokens, the last ones its
/// targets.
#[derive(Clone)]
pub struct TextSamples {
    text: Arc<Text>,
    context: usize,
    /// Bytes from the beginning of one window to the beginning of the next.
    stride: usize,
    /// How many of a window's last bytes the model predicts.
    targets: usize,
}

impl TextSamples {
    /// Samples that predict each next byte. A row has `context` tokens and as many targets, which
    /// are the same bytes one place later. The tokens of two samples never overlap.
    ///
    /// # Errors
    ///
    /// [`TextError::TooShort`] if the training text does not hold one sample.
    pub fn gpt(text: Arc<Text>, context: u32) -> Result<Self, TextError> {
        let context = context as usize;
        Self { text, context, stride: context, targets: context }.checked()
    }

    /// Samples that predict the byte after `context` bytes. A row has `context` tokens and 1
    /// target. A sample begins at every place of the text.
    ///
    /// # Errors
    ///
    /// [`TextError::TooShort`] if the training text does not hold one sample.
    pub fn mlp(text: Arc<Text>, context: u32) -> Result<Self, TextError> {
        Self { text, context: context as usize, stride: 1, targets: 1 }.checked()
    }

    fn checked(self) -> Result<Self, TextError> {
        let (bytes, context) = (self.text.training().len(), self.context);
        if bytes > context { Ok(self) } else { Err(TextError::TooShort { bytes, context }) }
    }

    fn count(&self, bytes: &[u8]) -> u64 {
        let starts = bytes.len().saturating_sub(self.context);
        starts.div_ceil(self.stride) as u64
    }

    fn append(&self, bytes: &[u8], index: u64, batch: &mut Batch) {
        let begin = index as usize * self.stride;
        let window = &bytes[begin..=begin + self.context];
        let (tokens, targets) = (&window[..self.context], &window[window.len() - self.targets..]);
        batch.tokens.extend(tokens.iter().copied().map(u32::from));
        batch.targets.extend(targets.iter().copied().map(u32::from));
        batch.rows += 1;
    }
}

impl Dataset for TextSamples {
    fn len(&self) -> u64 {
        self.count(self.text.training())
    }

    fn fingerprint(&self) -> [u8; 32] {
        self.text.fingerprint()
    }

    fn fill(&self, index: u64, batch: &mut Batch) {
        self.append(self.text.training(), index, batch);
    }

    fn validation_len(&self) -> u64 {
        self.count(self.text.held_out())
    }

    fn fill_validation(&self, index: u64, batch: &mut Batch) {
        self.append(self.text.held_out(), index, batch);
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
    fn rows(len: u64, fill: impl Fn(u64, &mut Batch)) -> Vec<(String, String)> {
        let read = |bytes: &[u32]| bytes.iter().map(|&byte| byte as u8 as char).collect();
        let row = |index| {
            let mut batch = Batch::default();
            fill(index, &mut batch);
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
        let data = TextSamples::gpt(text(b"abcdefghijklmno"), 3).expect("samples");
        let training = rows(data.len(), |index, batch| data.fill(index, batch));
        assert_eq!(training, named(&[("abc", "bcd"), ("def", "efg"), ("ghi", "hij")]));
        let held_out =
            rows(data.validation_len(), |index, batch| data.fill_validation(index, batch));
        assert_eq!(held_out, named(&[]));
    }

    #[test]
    fn an_mlp_predicts_the_byte_after_a_window_at_every_place() {
        let data = TextSamples::mlp(text(b"abcdefghijklmno"), 2).expect("samples");
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
        let data = TextSamples::gpt(text(b"abcdefghijklmno"), 3).expect("samples");
        let mut batch = Batch::default();
        data.fill(0, &mut batch);
        data.fill(2, &mut batch);
        assert_eq!((batch.rows, batch.tokens.len(), batch.targets.len()), (2, 6, 6));
        assert_eq!(batch.tokens[3..], [b'g', b'h', b'i'].map(u32::from));
    }

    #[test]
    fn one_sample_is_enough_and_less_is_refused() {
        // Of five bytes four are to train on.
        assert_eq!(TextSamples::gpt(text(b"abcde"), 3).expect("a sample").len(), 1);
        assert_eq!(TextSamples::mlp(text(b"abcde"), 3).expect("a sample").len(), 1);
        for error in [
            TextSamples::gpt(text(b"abcde"), 4).err().expect("an error"),
            TextSamples::mlp(text(b"abcde"), 4).err().expect("an error"),
        ] {
            let said = error.to_string();
            assert!(said.contains("4 bytes") && said.contains("takes 5"), "{said}");
        }
    }
}
