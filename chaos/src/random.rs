//! The one source of chance in a simulation: SplitMix64 (Steele, Lea and Flood, "Fast splittable
//! pseudorandom number generators", 2014).

use std::time::Duration;

/// A sequence of numbers that follows from its seed.
#[derive(Clone, Debug)]
pub struct Random(u64);

const INCREMENT: u64 = 0x9E37_79B9_7F4A_7C15;
/// The shortest delay, nanoseconds.
const SHORTEST_NS: u64 = 20_000;
/// The delay's scale is doubled up to this many times.
const DOUBLINGS: u64 = 8;

impl Random {
    /// The sequence of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(INCREMENT);
        finish(self.0)
    }

    /// A number below `limit`, which is not 0. Its bias is too small to show in a schedule.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.bits() % limit
    }

    /// A random delay: 20 µs to 2.6 ms, each scale in between as likely as any other. So a message
    /// that is sent later often arrives first.
    pub fn delay(&mut self) -> Duration {
        let scale = 1 << self.below(DOUBLINGS);
        Duration::from_nanos(SHORTEST_NS + self.below(SHORTEST_NS * scale))
    }
}

/// Bits that depend on every bit of `word`.
pub fn mix(word: u64) -> u64 {
    finish(word.wrapping_add(INCREMENT))
}

fn finish(word: u64) -> u64 {
    let z = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
