//! Tokens of files, cut into samples.

use everstep_kernels::compute::Batch;

use super::tokens::{TokenFileError, TokenRow, Tokens};
use super::windows::Windows;
use super::{DataError, Dataset};

/// The windows of tokens. Each is read from its files when it is asked for.
pub struct TokenSamples {
    tokens: Tokens,
    windows: Windows,
}

impl TokenSamples {
    /// The samples of tokens.
    ///
    /// # Errors
    ///
    /// [`TokenFileError::TooShort`] if the tokens to train on do not hold one sample.
    pub fn new(tokens: Tokens, windows: Windows) -> Result<Self, TokenFileError> {
        let context = windows.context();
        if windows.count(tokens.training().len()) == 0 {
            return Err(TokenFileError::TooShort { tokens: tokens.training().len(), context });
        }
        Ok(Self { tokens, windows })
    }

    fn append(&self, row: &TokenRow, index: u64, batch: &mut Batch) -> Result<(), DataError> {
        let window = self.tokens.read(row, self.windows.range(index))?;
        self.windows.append(window.iter().copied(), batch);
        Ok(())
    }
}

impl Dataset for TokenSamples {
    fn len(&self) -> u64 {
        self.windows.count(self.tokens.training().len())
    }

    fn fingerprint(&self) -> [u8; 32] {
        self.tokens.fingerprint()
    }

    fn fill(&self, index: u64, batch: &mut Batch) -> Result<(), DataError> {
        self.append(self.tokens.training(), index, batch)
    }

    fn validation_len(&self) -> u64 {
        self.windows.count(self.tokens.held_out().len())
    }

    fn fill_validation(&self, index: u64, batch: &mut Batch) -> Result<(), DataError> {
        self.append(self.tokens.held_out(), index, batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::tokens::tests::{Files, llm_c, wide};

    /// Twice the tokens 0 to 9, the second time in 32 bits, of which the last two are held out.
    fn samples(windows: Windows) -> TokenSamples {
        let files = Files::of(&[llm_c(0..10), wide(0..10)]);
        TokenSamples::new(files.open(None, 0.2, 10).expect("tokens"), windows).expect("samples")
    }

    fn row(samples: &TokenSamples, index: u64) -> (Vec<u32>, Vec<u32>) {
        let mut batch = Batch::default();
        samples.fill(index, &mut batch).expect("it can be read");
        assert_eq!(batch.rows, 1);
        (batch.tokens, batch.targets)
    }

    #[test]
    fn a_gpt_predicts_each_next_token_across_the_seams_of_files() {
        let samples = samples(Windows::gpt(5));
        let rows: Vec<_> = (0..samples.len()).map(|index| row(&samples, index)).collect();
        let expected = [
            (vec![0, 1, 2, 3, 4], vec![1, 2, 3, 4, 5]),
            (vec![5, 6, 7, 0, 1], vec![6, 7, 0, 1, 2]),
            (vec![2, 3, 4, 5, 6], vec![3, 4, 5, 6, 7]),
        ];
        assert_eq!(rows, expected);
    }

    #[test]
    fn an_mlp_predicts_one_token_from_every_place() {
        let samples = samples(Windows::mlp(5));
        assert_eq!(samples.len(), 11);
        assert_eq!(row(&samples, 4), (vec![4, 5, 6, 7, 0], vec![1]));
        assert_eq!(samples.validation_len(), 0);
        let mut batch = Batch::default();
        let shorter = Windows::mlp(3);
        let samples = TokenSamples::new(samples.tokens, shorter).expect("samples");
        samples.fill_validation(0, &mut batch).expect("it can be read");
        assert_eq!((batch.tokens, batch.targets), (vec![8, 9, 8], vec![9]));
    }

    #[test]
    fn less_than_one_sample_is_refused() {
        let files = Files::of(&[llm_c(0..10)]);
        let open = || files.open(None, 0.2, 10).expect("tokens");
        assert_eq!(TokenSamples::new(open(), Windows::gpt(7)).map(|data| data.len()).ok(), Some(1));
        let error = TokenSamples::new(open(), Windows::gpt(8)).err().expect("an error").to_string();
        assert!(error.contains("8 tokens to train on") && error.contains("takes 9"), "{error}");
    }
}
