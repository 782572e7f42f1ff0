//! The most floating-point operations a second of a GPU, as its maker states it.
//!
//! The figures are for dense products, without sparsity: in 16 bits on tensor cores that add in
//! f32, in f32 on CUDA cores. A GPU outside the list has no figure, rather than a guess. A GPU with
//! a limited power or clock keeps the figure of its data sheet.

use crate::precision::Precision;

/// TFLOP/s of a GPU by the name that its driver gives it: in 16 bits, and in f32 if that is known
/// for sure.
struct Peak {
    name: &'static str,
    half: f64,
    single: Option<f64>,
}

const fn peak(name: &'static str, half: f64, single: f64) -> Peak {
    Peak { name, half, single: Some(single) }
}

/// From NVIDIA's data sheets of the A10, A30, A40, A100, H100, H200, L4, L40S and HGX B200. If they
/// state products only "with sparsity", the figure is half of that. For GeForce from the white
/// papers of GA102 and Ada, appendix A.
const PEAKS: [Peak; 15] = [
    peak("NVIDIA A10", 125.0, 31.2),
    peak("NVIDIA A100 80GB PCIe", 312.0, 19.5),
    peak("NVIDIA A100-PCIE-40GB", 312.0, 19.5),
    peak("NVIDIA A100-SXM4-40GB", 312.0, 19.5),
    peak("NVIDIA A100-SXM4-80GB", 312.0, 19.5),
    peak("NVIDIA A30", 165.0, 10.3),
    peak("NVIDIA A40", 149.7, 37.4),
    Peak { name: "NVIDIA B200", half: 2250.0, single: None },
    peak("NVIDIA GeForce RTX 3090", 71.0, 35.6),
    peak("NVIDIA GeForce RTX 4090", 165.2, 82.6),
    peak("NVIDIA H100 80GB HBM3", 989.0, 67.0),
    peak("NVIDIA H100 PCIe", 756.0, 51.0),
    peak("NVIDIA H200", 989.0, 67.0),
    peak("NVIDIA L4", 121.0, 30.3),
    peak("NVIDIA L40S", 362.0, 91.6),
];

/// The most floating-point operations a second that this GPU does in this precision, if that is
/// known for sure. `name` is the driver's name for it, letter by letter: a name that differs in a
/// word is another product.
pub fn peak_flops(name: &str, precision: Precision) -> Option<f64> {
    let peak = PEAKS.iter().find(|peak| peak.name == name)?;
    let tera = match precision {
        Precision::F32 => peak.single?,
        Precision::Bf16 | Precision::Fp16 => peak.half,
    };
    Some(tera * 1e12)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_that_is_known_has_the_figures_of_its_data_sheet() {
        use Precision::*;
        for (name, precision, tera) in [
            ("NVIDIA A100-SXM4-80GB", Bf16, 312.0),
            ("NVIDIA A100-SXM4-80GB", F32, 19.5),
            ("NVIDIA H200", Bf16, 989.0),
            ("NVIDIA H200", Fp16, 989.0),
            ("NVIDIA H100 PCIe", Bf16, 756.0),
            ("NVIDIA B200", Bf16, 2250.0),
        ] {
            assert_eq!(peak_flops(name, precision), Some(tera * 1e12), "{name}, {precision}");
        }
    }

    #[test]
    fn nothing_is_guessed_of_a_gpu_that_is_not_known_or_of_a_part_of_one() {
        let others =
            ["cpu", "", "NVIDIA H200 NVL", "nvidia h200", "NVIDIA H200 MIG 1g.18gb", "H200"];
        for name in others {
            assert_eq!(peak_flops(name, Precision::Bf16), None, "{name}");
        }
        assert_eq!(peak_flops("NVIDIA B200", Precision::F32), None, "data sheets differ");
    }

    #[test]
    fn each_gpu_is_listed_once_and_is_faster_in_16_bits() {
        assert!(PEAKS.is_sorted_by(|a, b| a.name < b.name));
        assert!(PEAKS.iter().all(|peak| peak.single.is_none_or(|single| single < peak.half)));
    }
}
