//! One comparison of a backend with the f64 reference.

use everstep_kernels::backend::{Arena, Backend, Indices, Reference, Sizes, View};
use everstep_kernels::random::Philox;

pub const VOCABULARY: usize = 11;

/// A backend under test.
pub struct Subject {
    /// Allocates its arenas, zeroed.
    pub open: Box<dyn Fn(Sizes) -> Box<dyn Backend>>,
    /// Rounds to the nearest value that parameters and activations can have.
    pub round: fn(f32) -> f32,
    /// How far a result may be from the reference's, relative norm.
    pub tolerance: f64,
}

/// Places operands one after the other, and compares the results of an operation on them.
pub struct Check<'a> {
    subject: &'a Subject,
    pub sizes: Sizes,
    /// Outputs that start as NaN.
    pub poisoned: Vec<View>,
    changed: Vec<View>,
    pub deviation: f32,
}

impl<'a> Check<'a> {
    pub fn of(subject: &'a Subject) -> Self {
        let (poisoned, changed) = (Vec::new(), Vec::new());
        Self { subject, sizes: Sizes::default(), poisoned, changed, deviation: 1.0 }
    }

    pub fn parameter(&mut self, rows: usize, columns: usize) -> View {
        let view = View::new(Arena::Parameters, self.sizes.parameters, rows, columns);
        self.sizes.parameters += view.len();
        view
    }

    pub fn input(&mut self, rows: usize, columns: usize) -> View {
        let view = View::new(Arena::Activations, self.sizes.activations, rows, columns);
        self.sizes.activations += view.len();
        view
    }

    /// Statistics that the operation overwrites, in an order that is the backend's own.
    pub fn statistics(&mut self, rows: usize, columns: usize) -> View {
        let view = View::new(Arena::Statistics, self.sizes.statistics, rows, columns);
        self.sizes.statistics += view.len();
        self.poisoned.push(view);
        view
    }

    /// Statistics that the operation overwrites and the check compares.
    pub fn summary(&mut self, rows: usize, columns: usize) -> View {
        let view = self.statistics(rows, columns);
        self.changed.push(view);
        view
    }

    /// An output that the operation overwrites.
    pub fn written(&mut self, rows: usize, columns: usize) -> View {
        let view = self.input(rows, columns);
        self.poisoned.push(view);
        self.changed.push(view);
        view
    }

    /// An output that the operation adds to or changes in place.
    pub fn added(&mut self, rows: usize, columns: usize) -> View {
        let view = self.input(rows, columns);
        self.changed.push(view);
        view
    }

    /// A parameter with a gradient that the operation adds to.
    pub fn learned(&mut self, rows: usize, columns: usize) -> View {
        let view = self.parameter(rows, columns);
        self.changed.push(view.gradient());
        view
    }

    pub fn tokens(&mut self, len: usize) -> Indices {
        self.sizes.indices = len;
        Indices { offset: 0, len }
    }

    /// Compares changed values with the reference. Asserts that nothing else changes, and that a
    /// second run gives the same bits. All start from the same random values everywhere, except
    /// that outputs which the operation overwrites start as NaN.
    pub fn run(self, operation: impl Fn(&mut dyn Backend)) {
        assert!(!self.changed.is_empty(), "the check compares something");
        let mut reference: Box<dyn Backend> = Box::new(Reference::new(self.sizes));
        let [mut subject, mut second] = [(); 2].map(|()| (self.subject.open)(self.sizes));
        for device in [&mut reference, &mut subject, &mut second] {
            self.prepare(&mut **device);
            operation(&mut **device);
        }
        for arena in self.arenas() {
            let [first, second] = [&mut subject, &mut second].map(|device| bits(device, arena));
            assert!(first == second, "{arena:?} has other bits the second time");
        }
        for view in &self.changed {
            let [found, expected] =
                [&mut subject, &mut reference].map(|device| values(device, *view));
            let difference = distance(&found, &expected);
            let most = self.subject.tolerance;
            assert!(difference <= most, "{view:?} differs by {difference:e}");
        }
        for device in [&mut reference, &mut subject] {
            self.changed.iter().chain(&self.poisoned).for_each(|view| device.zero(*view));
        }
        for arena in self.arenas() {
            let [found, expected] = [&mut subject, &mut reference].map(|d| bits(d, arena));
            assert!(found == expected, "{arena:?} was changed where no output lies");
        }
    }

    fn prepare(&self, device: &mut dyn Backend) {
        for (stream, arena) in self.arenas().into_iter().enumerate() {
            let values = normals(stream as u64, arena.len()).map(|value| self.deviation * value);
            // Gradients and statistics are f32 everywhere. Rounding them, too, does no harm.
            device.write(arena, &values.map(self.subject.round).collect::<Vec<f32>>());
        }
        for view in &self.poisoned {
            device.write(*view, &vec![f32::NAN; view.len()]);
        }
        let tokens: Vec<u32> = (0..self.sizes.indices).map(token).collect();
        device.write_indices(Indices { offset: 0, len: tokens.len() }, &tokens);
    }

    /// Each arena as a whole.
    fn arenas(&self) -> [View; 4] {
        let Sizes { parameters, activations, statistics, .. } = self.sizes;
        [
            View::row(Arena::Parameters, 0..parameters),
            View::row(Arena::Gradients, 0..parameters),
            View::row(Arena::Activations, 0..activations),
            View::row(Arena::Statistics, 0..statistics),
        ]
    }
}

/// The norm of the difference, relative to the expected norm. NaN if any value is not finite.
pub fn distance(found: &[f32], expected: &[f32]) -> f64 {
    let square = |value: f64| value * value;
    let pairs = found.iter().zip(expected);
    let error: f64 = pairs.map(|(f, e)| square(f64::from(*f) - f64::from(*e))).sum();
    let norm: f64 = expected.iter().map(|e| square(f64::from(*e))).sum();
    (error / norm).sqrt()
}

/// Standard normal values.
pub fn normals(stream: u64, count: usize) -> impl Iterator<Item = f32> {
    let philox = Philox::new(5, 0, stream);
    (0..count as u64).map(move |index| philox.normal(index))
}

/// Some tokens appear often, some never.
fn token(index: usize) -> u32 {
    Philox::new(6, 0, 0).u32(index as u64) % (VOCABULARY as u32 - 2)
}

fn values(device: &mut Box<dyn Backend>, view: View) -> Vec<f32> {
    device.read_back(view).expect("nothing fails").into_owned()
}

fn bits(device: &mut Box<dyn Backend>, view: View) -> Vec<u32> {
    values(device, view).into_iter().map(f32::to_bits).collect()
}
