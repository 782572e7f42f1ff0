//! The rounding of parameters on the emulated device: the bits of the CPU.

use everstep_kernels::backend::cuda::{Argument, Driver, KERNELS, Launch};
use everstep_kernels::precision::Precision;
use half::{bf16, f16};

use super::emulated::Emulated;

/// Every upper half of an f32, with the lower halves at which rounding changes.
fn all_kinds() -> Vec<f32> {
    let lower = [0u32, 1, 0x0fff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001, 0xffff];
    let uppers = (0..=u16::MAX).step_by(3).chain([0x7f80, 0xff80, 0x7fc0, 0x4780]);
    uppers.flat_map(|upper| lower.map(|l| f32::from_bits(u32::from(upper) << 16 | l))).collect()
}

/// What `values` are in the driver's 16 bits, by the kernel that stores parameters.
fn cast(driver: &mut Emulated, values: &[f32]) -> Vec<u16> {
    let from = driver.allocate(4 * values.len()).expect("the host has the memory");
    let to = driver.allocate(2 * values.len()).expect("the host has the memory");
    driver.write(from, bytemuck::cast_slice(values));
    let kernel = KERNELS.iter().find(|kernel| kernel.name == "cast").expect("it is listed");
    let arguments = [from, to].map(Argument::Address);
    let count = Argument::Long(values.len() as u64);
    let shape = Launch { grid: [64, 1, 1], block: [256, 1, 1] };
    driver.launch(kernel, shape, &[&arguments[..], &[count]].concat());
    let mut found = vec![0u16; values.len()];
    driver.read(to, bytemuck::cast_slice_mut(&mut found)).expect("nothing fails");
    found
}

#[test]
fn computing_copies_are_rounded_as_on_the_cpu() {
    let values = all_kinds();
    for (precision, infinity) in [(Precision::Bf16, 0x7f80), (Precision::Fp16, 0x7c00)] {
        let Some(mut driver) = Emulated::new(precision) else { return };
        for (value, found) in values.iter().zip(cast(&mut driver, &values)) {
            // Any NaN is as good as another.
            let good = match value.is_nan() {
                true => found & 0x7fff > infinity,
                false if precision == Precision::Bf16 => found == bf16::from_f32(*value).to_bits(),
                false => found == f16::from_f32(*value).to_bits(),
            };
            assert!(good, "{value:e} in {precision} is not {found:x}");
        }
    }
}
