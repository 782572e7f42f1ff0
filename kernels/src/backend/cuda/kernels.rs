//! The kernels, embedded: one file an operation, each with its launchable functions.

use super::driver::{Kernel, Source};

macro_rules! kernels {
    ($($source:ident, $file:literal: $($kernel:ident = $name:literal),+;)+) => {
        $(
            static $source: Source =
                Source { name: $file, text: include_str!(concat!("kernels/", $file)) };
            $(pub(super) static $kernel: Kernel = Kernel { source: &$source, name: $name };)+
        )+

        /// Every file, for who compiles them ahead of time.
        pub static SOURCES: &[&Source] = &[$(&$source),+];

        /// Every kernel of every file.
        pub static KERNELS: &[&Kernel] = &[$($(&$kernel),+),+];
    };
}

kernels! {
    ADD_SOURCE, "add.cu": ADD = "add";
}
