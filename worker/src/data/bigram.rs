//! The yardstick for text: the loss of a model that sees only the last byte.
//!
//! A run that ends with a validation loss above this one has not learned to read. The report shows
//! the figure. No hash includes it.

/// The amount added to each count, so that a pair which training never saw is not impossible.
const SMOOTHING: f64 = 0.01;

/// Counts of pairs: how often `second` follows `first`, at `[first][second]`.
type Pairs = Box<[[u64; 256]; 256]>;

/// The cross-entropy, in nats a byte, of each byte of `held_out` given the byte before it, under
/// the smoothed bigram counts of `training`. `None` if `held_out` has no pair of bytes.
///
/// It predicts every byte but the first, across the seams between files too, since a model's
/// samples also lie across them.
pub fn cross_entropy(training: &[u8], held_out: &[u8]) -> Option<f64> {
    let predicted = held_out.len().checked_sub(1).filter(|&count| count > 0)?;
    let (learned, asked) = (count(training), count(held_out));
    let mut nats = 0.0;
    for (learned, asked) in learned.iter().zip(asked.iter()) {
        let total = learned.iter().sum::<u64>() as f64 + 256.0 * SMOOTHING;
        for (&seen, &times) in learned.iter().zip(asked) {
            nats -= times as f64 * ((seen as f64 + SMOOTHING) / total).ln();
        }
    }
    Some(nats / predicted as f64)
}

fn count(text: &[u8]) -> Pairs {
    let mut pairs: Pairs = Box::new([[0; 256]; 256]);
    for pair in text.windows(2) {
        pairs[usize::from(pair[0])][usize::from(pair[1])] += 1;
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_what_a_hand_computes() {
        // After `a` training saw `b` twice and `a` once. After `b` it saw `a` once.
        let learned = b"abaab";
        // Asked: `ab`, `bb`, `ba`.
        let probabilities: [f64; 3] = [2.01 / 5.56, 0.01 / 3.56, 1.01 / 3.56];
        let expected = -probabilities.map(f64::ln).iter().sum::<f64>() / 3.0;
        let loss = cross_entropy(learned, b"abba").expect("there are pairs");
        assert!((loss - expected).abs() < 1e-12, "{loss} for {expected}");
    }

    #[test]
    fn without_training_every_byte_is_as_likely() {
        let loss = cross_entropy(b"", b"anything").expect("there are pairs");
        assert!((loss - 256f64.ln()).abs() < 1e-12, "{loss}");
    }

    #[test]
    fn without_a_pair_there_is_no_figure() {
        assert_eq!(cross_entropy(b"abc", b""), None);
        assert_eq!(cross_entropy(b"abc", b"a"), None);
    }
}
