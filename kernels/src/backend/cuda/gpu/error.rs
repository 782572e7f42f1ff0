//! Errors of GPUs, in words for the user.

/// Why a GPU cannot be used, or how it has failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// This machine has no NVIDIA driver.
    #[error(
        "there is no NVIDIA driver on this machine (no libcuda.so.1): install it, or use the CPU"
    )]
    NoDriver,
    /// The driver is older than the oldest that has all of Everstep's calls.
    #[error(
        "the NVIDIA driver is too old: it offers CUDA {}, and CUDA {} is needed. Install a newer \
         driver, or use the CPU", version(*found), version(*needed)
    )]
    DriverTooOld {
        /// What the driver offers: 1000 times the major version, and 10 times the minor one.
        found: i32,
        /// The version that Everstep needs, in the same form.
        needed: i32,
    },
    /// A library of CUDA is missing.
    #[error(
        "{library} is not found: install CUDA's libraries (or {package} from PyPI), and put their \
         folder on LD_LIBRARY_PATH, or use the CPU"
    )]
    NoLibrary {
        /// The library's file name.
        library: &'static str,
        /// The package that contains it.
        package: &'static str,
    },
    /// The driver is there, but no GPU.
    #[error("the NVIDIA driver finds no GPU (is CUDA_VISIBLE_DEVICES empty?): use the CPU")]
    NoDevice,
    /// There are GPUs, but not this one.
    #[error("there is no GPU {index}: this machine has {count}, counted from 0 (everstep devices)")]
    NoSuchDevice {
        /// The number that the user asked for.
        index: usize,
        /// The number of GPUs.
        count: usize,
    },
    /// The GPU is older than the oldest that the kernels are written for.
    #[error(
        "GPU {index} ({name}) is too old: its compute capability is {}.{}, and 8.0 is needed. Use \
         another one, or the CPU", found.0, found.1
    )]
    DeviceTooOld {
        /// The number of the GPU that is too old.
        index: usize,
        /// The name that its maker gave it.
        name: String,
        /// The GPU's compute capability.
        found: (i32, i32),
    },
    /// Another process has the GPU for itself.
    #[error(
        "GPU {index} is in exclusive mode, and another process has it: wait for that, choose \
         another GPU, or let more processes share it (nvidia-smi -c DEFAULT)"
    )]
    Taken {
        /// The number of the GPU in exclusive mode.
        index: usize,
    },
    /// The GPU has no free memory.
    #[error(
        "the GPU has no memory left for {call}: end what else uses it, or lower batch.micro_batch \
         (a GPT also takes less with model.recompute = true)"
    )]
    Full {
        /// The name of the failed call.
        call: &'static str,
    },
    /// The host has no memory left that the GPU may copy from and to.
    #[error(
        "the host has no {} MiB of memory to pin for the GPU's copies: give the worker more (the \
         machine's memory, its container's limit, `ulimit -l`), or run fewer workers on this \
         machine", bytes >> 20
    )]
    HostFull {
        /// All memory that a worker pins.
        bytes: usize,
    },
    /// A library of CUDA is older than those that Everstep knows.
    #[error(
        "{library} is too old: version {found} was found, and 13.0 is needed. Install a newer one, \
         and put its folder first on LD_LIBRARY_PATH"
    )]
    LibraryTooOld {
        /// The library's file name.
        library: &'static str,
        /// The version that was found.
        found: String,
    },
    /// A kernel was not compiled: a flaw of Everstep or of the compiler.
    #[error("the kernel {file} cannot be compiled for {architecture}: {log}")]
    Compile {
        /// The kernel's source file.
        file: String,
        /// The kind of GPU that it was compiled for.
        architecture: String,
        /// What the compiler reported.
        log: String,
    },
    /// The GPU or its driver failed.
    #[error("{call} failed on the GPU: {why}")]
    Failed {
        /// The name of the failed call.
        call: &'static str,
        /// CUDA's own words for the error.
        why: String,
    },
}

/// A version in the form that CUDA counts in.
fn version(number: i32) -> String {
    format!("{}.{}", number / 1000, number % 1000 / 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_what_failed_and_what_to_do() {
        let old = CudaError::DriverTooOld { found: 12_040, needed: 13_000 };
        let words = old.to_string();
        assert!(words.contains("CUDA 12.4, and CUDA 13.0 is needed. Install"), "{words}");
    }

    #[test]
    fn a_host_without_memory_to_pin_is_not_taken_for_a_full_gpu() {
        let words = CudaError::HostFull { bytes: 32 << 20 }.to_string();
        assert!(words.starts_with("the host has no 32 MiB of memory to pin"), "{words}");
        for advice in ["its container's limit", "`ulimit -l`", "run fewer workers"] {
            assert!(words.contains(advice), "{words}");
        }
        assert!(!words.contains("micro_batch"), "{words}");
    }
}
