//! A histogram of times, with cumulative buckets as Prometheus has them.

/// Counts how many times were at most as long as each bound. Every bound counts what the smaller
/// ones count, too.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    /// Upper bounds, seconds, ascending.
    bounds: &'static [f64],
    /// For each bound, how many times fell between the bound before and it. The last counts those
    /// above all.
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    /// An empty histogram with these upper bounds, in seconds, ascending.
    pub fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    /// Counts a time, given in seconds.
    pub fn observe(&mut self, seconds: f64) {
        let bucket = self.bounds.partition_point(|bound| *bound < seconds);
        self.counts[bucket] += 1;
        self.sum += seconds;
    }

    /// Each bound with the number of times at most as long.
    pub fn buckets(&self) -> impl Iterator<Item = (f64, u64)> {
        self.bounds.iter().zip(&self.counts).scan(0, |below, (bound, count)| {
            *below += count;
            Some((*bound, *below))
        })
    }

    /// How many times the histogram has counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The sum of the times, in seconds.
    pub fn sum(&self) -> f64 {
        self.sum
    }
}
