//! The kernels, embedded: one file an operation, each with its launchable functions.

use super::driver::{Kernel, KernelSource};
use crate::precision::Precision;

const ANY: &[Precision] = &[Precision::F32, Precision::Bf16, Precision::Fp16];
/// The precisions that tensor cores multiply.
const HALVES: &[Precision] = &[Precision::Bf16, Precision::Fp16];

macro_rules! kernels {
    ($($source:ident, $file:literal, $precisions:ident: $($kernel:ident = $name:literal),+;)+) => {
        $(
            static $source: KernelSource = KernelSource {
                name: $file,
                text: include_str!(concat!("kernels/", $file)),
                precisions: $precisions,
            };
            $(pub(super) static $kernel: Kernel = Kernel { source: &$source, name: $name };)+
        )+

        /// Every file, each with its precisions.
        pub static SOURCES: &[&KernelSource] = &[$(&$source),+];

        /// Every kernel of every file.
        pub static KERNELS: &[&Kernel] = &[$($(&$kernel),+),+];
    };
}

kernels! {
    ADD_SOURCE, "add.cu", ANY: ADD = "add";
    ATTENTION_SOURCE, "attention.cu", ANY:
        ATTENTION = "attention",
        ATTENTION_BACKWARD_QUERY = "attention_backward_query",
        ATTENTION_BACKWARD_KEY = "attention_backward_key";
    BIAS_SOURCE, "bias.cu", ANY: ADD_BIAS = "add_bias", BIAS_PARTIALS = "bias_partials";
    CAST_SOURCE, "cast.cu", ANY: CAST = "cast", WIDEN = "widen";
    CROSS_ENTROPY_SOURCE, "cross_entropy.cu", ANY: CROSS_ENTROPY = "cross_entropy";
    EMBEDDING_SOURCE, "embedding.cu", ANY:
        EMBEDDING = "embedding",
        EMBEDDING_BACKWARD = "embedding_backward";
    EXPECTED_SOURCE, "expected.cu", ANY: ATTENTION_EXPECTED = "attention_expected";
    FLASH_SOURCE, "flash_attention.cu", ANY:
        FLASH_64 = "flash_attention_64",
        FLASH_128 = "flash_attention_128",
        FLASH_BACKWARD_QUERY_64 = "flash_backward_query_64",
        FLASH_BACKWARD_QUERY_128 = "flash_backward_query_128",
        FLASH_BACKWARD_KEY_64 = "flash_backward_key_64",
        FLASH_BACKWARD_KEY_128 = "flash_backward_key_128";
    GELU_SOURCE, "gelu.cu", ANY: GELU = "gelu", GELU_BACKWARD = "gelu_backward";
    LAYER_NORM_SOURCE, "layer_norm.cu", ANY:
        LAYER_NORM = "layer_norm",
        LAYER_NORM_BACKWARD = "layer_norm_backward",
        LAYER_NORM_PARTIALS = "layer_norm_partials";
    MATMUL_SOURCE, "matmul.cu", ANY: MATMUL = "matmul", MATMUL_F32 = "matmul_f32";
    PARTIALS_SOURCE, "partials.cu", ANY: ADD_PARTIALS = "add_partials";
    TENSOR_SOURCE, "tensor_attention.cu", HALVES:
        TENSOR_64 = "tensor_attention_64",
        TENSOR_128 = "tensor_attention_128",
        TENSOR_BACKWARD_QUERY_64 = "tensor_backward_query_64",
        TENSOR_BACKWARD_QUERY_128 = "tensor_backward_query_128",
        TENSOR_BACKWARD_KEY_64 = "tensor_backward_key_64",
        TENSOR_BACKWARD_KEY_128 = "tensor_backward_key_128";
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines() -> impl Iterator<Item = (&'static str, &'static str)> {
        let files = SOURCES.iter().map(|source| (source.name, source.text));
        let preamble = [("real.cuh", include_str!("kernels/real.cuh"))];
        files.chain(preamble).flat_map(|(name, text)| text.lines().map(move |line| (name, line)))
    }

    #[test]
    fn every_kernel_is_a_function_of_its_file() {
        for Kernel { source, name } in KERNELS {
            assert_eq!(source.text.matches(&format!(" {name}(")).count(), 1, "{name}");
        }
        let functions = lines().filter(|(_, line)| line.starts_with("extern \"C\"")).count();
        assert_eq!(functions, KERNELS.len(), "a kernel without a launch");
    }

    #[test]
    fn every_file_begins_with_its_reference_and_what_was_tried_and_where() {
        for KernelSource { name, text, .. } in SOURCES {
            let comment: String = text.lines().take_while(|line| line.starts_with("//")).collect();
            for part in ["CPU reference", "Tried or considered", "On a GPU:"] {
                assert!(comment.contains(part), "{name}: {part}");
            }
            assert!(text.lines().count() <= 500, "{name} is too long");
        }
    }

    /// Headers are not found at run time, and atomic additions have no order.
    #[test]
    fn no_file_needs_headers_or_atomics() {
        for (name, line) in lines() {
            assert!(line.len() <= 100, "{name}: {line}");
            let code = line.split("//").next().unwrap_or_default();
            assert!(!code.contains("#include") && !code.contains("atomic"), "{name}: {line}");
        }
    }
}
