//! The hash of `fxhash` 0.2: fast, and the same everywhere, so that maps are gone through in an
//! order that follows from their content. Keys are ids of replicas and numbers of reads, which no
//! stranger chooses.

const SEED: u64 = 0x51_7c_c1_b7_27_22_0a_95;

/// A hasher that begins with nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hasher {
    hash: u64,
}

impl Hasher {
    fn add(&mut self, word: u64) {
        self.hash = (self.hash.rotate_left(5) ^ word).wrapping_mul(SEED);
    }
}

impl std::hash::Hasher for Hasher {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.add(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, number: u8) {
        self.add(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        self.add(number);
    }

    fn write_usize(&mut self, number: usize) {
        self.add(number as u64);
    }

    fn finish(&self) -> u64 {
        self.hash
    }
}
