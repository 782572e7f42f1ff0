//! Products, and the further work on their sums: by the device's library if it has a way, else by
//! kernels of our own. The choice depends on shapes and alignment alone, on one kind of GPU with
//! one version of the library.

use super::driver::{Address, Argument, Driver, Epilogue, Matrix, Product};
use super::{Cuda, choice, kernels, launch, long};
use crate::backend::{Arena, Backend, View};

/// Writes `c = a b`, or adds it.
pub fn product<D: Driver>(cuda: &mut Cuda<D>, [a, b, c]: [View; 3], accumulate: bool) {
    let operands = operands(cuda, [a, b, c]);
    if by_library(cuda, [a, b, c], accumulate, Epilogue::None) {
        return;
    }
    let kernel = match c.arena {
        Arena::Parameters | Arena::Activations => &kernels::MATMUL,
        Arena::Gradients | Arena::Statistics => &kernels::MATMUL_F32,
    };
    let [m, n, k] = [c.rows(), c.columns(), a.columns()].map(long);
    let [a, b, accumulate] = [a.transposed, b.transposed, accumulate].map(choice);
    let [left, right, sums] = operands;
    let arguments = [left, right, sums, m, n, k, a, b, accumulate];
    cuda.launch(kernel, launch::tiles(c.rows(), c.columns()), &arguments);
}

/// Writes `y = x weight + bias`.
pub fn linear<D: Driver + 'static>(cuda: &mut Cuda<D>, [x, weight, y]: [View; 3], bias: View) {
    let epilogue = Epilogue::Bias { bias: bias_of(cuda, bias, y) };
    if !with_epilogue(cuda, [x, weight, y], epilogue) {
        cuda.matmul(x, weight, y);
        cuda.add_bias(bias, y);
    }
}

/// Writes `y = x weight + bias`, and GELU of it.
pub fn linear_gelu<D: Driver + 'static>(
    cuda: &mut Cuda<D>,
    [x, weight]: [View; 2],
    bias: View,
    [y, activated]: [View; 2],
) {
    let bias_at = bias_of(cuda, bias, y);
    let epilogue = Epilogue::Gelu { bias: bias_at, input: input_of(cuda, y, activated) };
    if !with_epilogue(cuda, [x, weight, activated], epilogue) {
        cuda.linear(x, weight, bias, y);
        cuda.gelu(y, activated);
    }
}

/// Writes `c = a b`, multiplied by the derivative of GELU at `x`.
pub fn gelu_backward<D: Driver + 'static>(cuda: &mut Cuda<D>, [a, b, c]: [View; 3], x: View) {
    let epilogue = Epilogue::GeluBackward { input: input_of(cuda, x, c) };
    if !with_epilogue(cuda, [a, b, c], epilogue) {
        cuda.matmul(a, b, c);
        cuda.gelu_backward(x, c);
    }
}

fn bias_of<D: Driver>(cuda: &mut Cuda<D>, bias: View, y: View) -> Address {
    assert_eq!(bias.len(), y.columns(), "one bias for each column");
    place(cuda, bias)
}

fn input_of<D: Driver>(cuda: &mut Cuda<D>, input: View, output: View) -> Address {
    let shape = |view: View| (view.rows(), view.columns());
    assert_eq!(shape(input), shape(output), "GELU keeps the shape");
    place(cuda, input)
}

/// Where a view of parameters or activations begins. The next enqueued work uses it.
fn place<D: Driver>(cuda: &mut Cuda<D>, view: View) -> Address {
    cuda.real(view);
    cuda.arenas.address(view)
}

/// `false` if the library cannot do this. Nothing is computed then.
fn with_epilogue<D: Driver>(cuda: &mut Cuda<D>, views: [View; 3], epilogue: Epilogue) -> bool {
    operands(cuda, views);
    cuda.real(views[2]); // sums that are kept in f32 have no epilogue
    by_library(cuda, views, false, epilogue)
}

/// The operands of the next enqueued work.
fn operands<D: Driver>(cuda: &mut Cuda<D>, [a, b, c]: [View; 3]) -> [Argument; 3] {
    assert_eq!((a.rows(), b.columns()), (c.rows(), c.columns()), "shape of the product");
    assert_eq!(a.columns(), b.rows(), "inner size of the product");
    let upright = |view: View| View { transposed: false, ..view };
    [cuda.real(upright(a)), cuda.real(upright(b)), cuda.at(c)]
}

fn by_library<D: Driver>(
    cuda: &mut Cuda<D>,
    views: [View; 3],
    accumulate: bool,
    epilogue: Epilogue,
) -> bool {
    assert!(!accumulate || epilogue == Epilogue::None, "what is added has no epilogue");
    let [a, b, c] = views.map(|view| matrix(cuda, view));
    views[2].is_empty() || cuda.driver.matmul(&Product { a, b, c, accumulate, epilogue })
}

fn matrix<D: Driver>(cuda: &Cuda<D>, view: View) -> Matrix {
    Matrix {
        address: cuda.arenas.address(view),
        element: cuda.arenas.element(view.arena),
        rows: view.rows(),
        columns: view.columns(),
        transposed: view.transposed,
    }
}
