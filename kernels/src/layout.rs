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
        /// The standard deviation.
        deviation: f32,
    },
}

/// One named tensor of the model.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// The name in `model.safetensors`.
    pub name: String,
    /// The shape, row-major.
    pub shape: Vec<usize>,
    /// Where the tensor begins in the flat vector, elements.
    pub offset: usize,
    /// The source of its initial values.
    pub init: Init,
    /// Whether weight decay applies: to matrices, not to biases and norms.
    pub decay: bool,
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
    /// An empty layout.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a tensor and returns its range. Tensors of two or more dimensions decay.
    pub fn push(&mut self, name: impl Into<String>, shape: &[usize], init: Init) -> Range<usize> {
        let tensor = Tensor {
            name: name.into(),
            shape: shape.to_vec(),
            offset: self.count(),
            init,
            decay: shape.len() >= 2,
        };
        let range = tensor.range();
        self.tensors.push(tensor);
        range
    }

    /// The tensors, in order.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// The number of parameters.
    pub fn count(&self) -> usize {
        self.tensors.last().map_or(0, |last| last.range().end)
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
