//! Every operation of the CPU, forward and backward, against the f64 reference, to 1e-5 in relative
//! norm.

#[macro_use]
mod operations {
    pub mod check;
    #[macro_use]
    pub mod checks;
}

use everstep_kernels::backend::Cpu;
use operations::check::Subject;

fn cpu() -> Option<Subject> {
    let open = Box::new(|sizes| Box::new(Cpu::new(sizes)) as _);
    Some(Subject { open, round: |value| value, tolerance: 1e-5 })
}

test_every_operation!(cpu());
