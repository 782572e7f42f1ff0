//! Chance from a seed, for tests that are not the simulator's.

/// Xorshift: good enough for the choices of a test.
pub struct Dice(u64);

impl Dice {
    /// The dice of a seed.
    pub fn of(seed: u64) -> Self {
        Self(seed.wrapping_mul(2) + 1)
    }

    /// A number below the limit.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}
