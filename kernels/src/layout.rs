//! The flat parameter vector: named tensors one after the other, and its cut into parameter shards.

use std::ops::Range;

use crate::random::Philox;

/// The source of a tensor's values before the first step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// Every element has this value.
    Constant(f32),
    /// Independent normal values with mean zero.
    Normal {
        /// The standard deviation of the normal distribution around 0.
        deviation: f32,
    },
}

/// What a step makes of a tensor that the forward passes of a model change, such as the running
/// mean of a batch norm.
///
/// No optimizer changes such a tensor, and it has no part in the norm of the gradient. In the place
/// of its gradient a pass announces a change of its value, or the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Statistic {
    /// Each data shard announces its change, divided by the number of data shards. The sum, their
    /// mean, is added.
    Mean,
    /// As [`Statistic::Mean`], and the result is a whole number: a count.
    Count,
    /// The first data shard announces its value, and all others announce zeros. It replaces the
    /// value.
    First,
}

/// One named tensor of the model.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// The name in `model.safetensors`.
    pub name: String,
    /// The shape. The last index changes fastest in memory.
    pub shape: Vec<usize>,
    /// Where the tensor begins in the flat vector, elements.
    pub offset: usize,
    /// The source of its initial values.
    pub init: Init,
    /// Whether weight decay applies: to matrices, not to biases and norms.
    pub decay: bool,
    /// How its value follows from the forward passes. `None`: the optimizer trains it.
    pub statistic: Option<Statistic>,
}

impl Tensor {
    /// The number of elements.
    pub fn count(&self) -> usize {
        self.shape.iter().product()
    }

    /// The tensor's range of the flat vector, elements.
    pub fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.count()
    }
}

/// All tensors of a model, in the order of the flat vector, without gaps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Layout {
    tensors: Vec<Tensor>,
}

impl Layout {
    /// A layout without parameters, to which a model adds its own.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a tensor and returns its range. Tensors of two or more dimensions decay.
    ///
    /// # Panics
    /// If a statistic stands before it.
    pub fn push(&mut self, name: impl Into<String>, shape: &[usize], init: Init) -> Range<usize> {
        let follows = self.tensors.last().is_none_or(|last| last.statistic.is_none());
        assert!(follows, "statistics come after all trained tensors");
        self.append(name.into(), shape, init, None)
    }

    /// Appends a tensor that no optimizer trains, and returns its range.
    pub fn push_statistic(
        &mut self,
        name: impl Into<String>,
        shape: &[usize],
        init: Init,
        statistic: Statistic,
    ) -> Range<usize> {
        self.append(name.into(), shape, init, Some(statistic))
    }

    fn append(
        &mut self,
        name: String,
        shape: &[usize],
        init: Init,
        statistic: Option<Statistic>,
    ) -> Range<usize> {
        let (shape, offset) = (shape.to_vec(), self.count());
        let decay = shape.len() >= 2 && statistic.is_none();
        let tensor = Tensor { name, shape, offset, init, decay, statistic };
        let range = tensor.range();
        self.tensors.push(tensor);
        range
    }

    /// The tensors, in order.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// The number of elements: trained parameters, and statistics.
    pub fn count(&self) -> usize {
        self.tensors.last().map_or(0, |last| last.range().end)
    }

    /// The number of trained parameters. The statistics come after them.
    pub fn trained(&self) -> usize {
        let trained = self.tensors.partition_point(|tensor| tensor.statistic.is_none());
        self.tensors.get(trained).map_or(self.count(), |first| first.offset)
    }

    /// The initial values of `range`. They are a pure function of the seed and each global index,
    /// so any member may compute any part.
    pub fn init(&self, seed: u64, range: Range<usize>, values: &mut [f32]) {
        assert_eq!(range.len(), values.len(), "one value for each index");
        for (tensor, part) in self.parts(range.clone()) {
            let values = &mut values[part.start - range.start..part.end - range.start];
            match tensor.init {
                Init::Constant(value) => values.fill(value),
                Init::Normal { deviation } => {
                    let stream = Philox::new(seed, Philox::INITIAL_VALUES, 0);
                    for (index, value) in part.zip(values) {
                        *value = deviation * stream.normal(index as u64);
                    }
                }
            }
        }
    }

    /// The tensors that `range` touches, each with the part of it inside `range`.
    pub fn parts(&self, range: Range<usize>) -> impl Iterator<Item = (&Tensor, Range<usize>)> {
        let first = self.tensors.partition_point(|tensor| tensor.range().end <= range.start);
        let end = if range.is_empty() { 0 } else { range.end };
        self.tensors[first..].iter().take_while(move |tensor| tensor.offset < end).map(
            move |tensor| {
                let whole = tensor.range();
                (tensor, whole.start.max(range.start)..whole.end.min(range.end))
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_tensors() -> Layout {
        let mut layout = Layout::new();
        layout.push("weight", &[3, 4], Init::Normal { deviation: 0.5 });
        layout.push("bias", &[4], Init::Constant(1.0));
        layout
    }

    #[test]
    fn parts_cover_the_range_without_gaps() {
        let layout = two_tensors();
        let parts: Vec<_> = layout.parts(10..14).map(|(t, r)| (t.name.as_str(), r)).collect();
        assert_eq!(parts, [("weight", 10..12), ("bias", 12..14)]);
        assert_eq!(layout.parts(5..5).count(), 0);
    }

    #[test]
    fn statistics_come_after_the_trained_parameters() {
        let mut layout = two_tensors();
        assert_eq!((layout.trained(), layout.count()), (16, 16));
        let one = Init::Constant(1.0);
        assert_eq!(layout.push_statistic("variance", &[2, 2], one, Statistic::Mean), 16..20);
        assert_eq!(layout.push_statistic("count", &[], one, Statistic::Count), 20..21);
        assert_eq!((layout.trained(), layout.count()), (16, 21));
        assert!(layout.tensors()[2..].iter().all(|tensor| !tensor.decay));
        assert_eq!(Layout::new().trained(), 0);
    }

    #[test]
    #[should_panic(expected = "statistics come after all trained tensors")]
    fn a_trained_tensor_after_a_statistic_is_refused() {
        let mut layout = Layout::new();
        layout.push_statistic("empty", &[0], Init::Constant(0.0), Statistic::First);
        layout.push("weight", &[3], Init::Constant(0.0));
    }

    #[test]
    fn initial_values_do_not_depend_on_the_cut() {
        let layout = two_tensors();
        let mut whole = vec![0.0; 16];
        layout.init(7, 0..16, &mut whole);
        for cut in 0..16 {
            let (mut left, mut right) = (vec![0.0; cut], vec![0.0; 16 - cut]);
            layout.init(7, 0..cut, &mut left);
            layout.init(7, cut..16, &mut right);
            left.extend(right);
            assert_eq!(left, whole);
        }
        assert_eq!(whole[12..], [1.0; 4]);
    }
}
