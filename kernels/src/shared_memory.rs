//! Memory that processes of one host share: files without a name, which are sealed.
//!
//! The process that creates a [`Segment`] writes into it. Another process gets its descriptor,
//! and reads it as a [`ForeignSegment`]. The kernel lets no other process write, and no
//! process change the size. The memory is free once no process holds it, however they end.
//!
//! Linux has such files. Elsewhere none can be created.
//!
//! This module does not know what the bytes mean, nor when a reader may read them.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::ptr::{self, NonNull};

#[cfg(target_os = "linux")]
use self::linux as system;
#[cfg(not(target_os = "linux"))]
use self::other as system;

/// Memory that this process writes and others read.
#[derive(Debug)]
pub struct Segment {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to the segment alone, and no thread has a stake in it.
unsafe impl Send for Segment {}

impl Segment {
    /// A segment of `bytes` bytes, and its descriptor for readers. All of its memory is there at
    /// once: a process without memory would get a signal at a write, which has no remedy.
    ///
    /// # Errors
    /// Those of the system, which may have no memory, or forbid such files.
    pub fn create(bytes: usize) -> io::Result<(Self, OwnedFd)> {
        let (file, start) = system::create(bytes)?;
        Ok((Self { start, bytes }, file))
    }

    /// The bytes that it holds.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Writes these bytes from offset `at` on.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn write(&mut self, at: usize, from: &[u8]) {
        let fits = at.checked_add(from.len()).is_some_and(|end| end <= self.bytes);
        assert!(fits, "{} bytes at {at} of {}", from.len(), self.bytes);
        // SAFETY: the range is within the mapping, which `from` cannot overlap: no reference to it
        // exists.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), self.start.as_ptr().add(at), from.len()) };
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: this is the mapping of `create`, and nothing refers to it any more.
        unsafe { system::unmap(self.start, self.bytes) };
    }
}

/// A segment of another process, to be read.
#[derive(Debug)]
pub struct ForeignSegment {
    file: File,
}

/// A descriptor that is not that of a segment: the size may change, or others may write.
#[derive(Debug, thiserror::Error)]
#[error("its memory is not sealed")]
pub struct UnsealedError;

impl ForeignSegment {
    /// Takes the descriptor that another process has sent.
    ///
    /// # Errors
    /// [`UnsealedError`]: it is something else.
    pub fn new(file: OwnedFd) -> Result<Self, UnsealedError> {
        match system::is_sealed(&file) {
            true => Ok(Self { file: file.into() }),
            false => Err(UnsealedError),
        }
    }

    /// Reads the bytes from offset `at` on.
    ///
    /// # Errors
    /// If they do not lie in the segment.
    pub fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, at)
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::io;
    use std::os::fd::OwnedFd;
    use std::ptr::{self, NonNull};

    use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
    use rustix::mm::{Advice, MapFlags, ProtFlags};

    /// For good, the size stays, and only the creator's mapping writes.
    const SEALS: SealFlags = SealFlags::SHRINK
        .union(SealFlags::GROW)
        .union(SealFlags::FUTURE_WRITE)
        .union(SealFlags::SEAL);

    /// Creates the file, and maps it.
    pub(super) fn create(bytes: usize) -> io::Result<(OwnedFd, NonNull<u8>)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("everstep", flags)?;
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes as u64)?;
        let (anywhere, access) = (ptr::null_mut(), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: the system chooses an address where nothing is mapped.
        let start =
            unsafe { rustix::mm::mmap(anywhere, bytes, access, MapFlags::SHARED, &file, 0)? };
        // The mapping of a process that is forked from this one would keep the memory alive. If the
        // system does not know the advice, it may.
        // SAFETY: the range is that of the mapping, and the advice changes nothing here.
        let _ = unsafe { rustix::mm::madvise(start, bytes, Advice::LinuxDontFork) };
        let start = NonNull::new(start.cast()).expect("a mapping is never at the address 0");
        if let Err(error) = rustix::fs::fcntl_add_seals(&file, SEALS) {
            // SAFETY: nothing refers to the mapping.
            unsafe { unmap(start, bytes) };
            return Err(error.into());
        }
        Ok((file, start))
    }

    /// Ends a mapping.
    ///
    /// # Safety
    /// It is one of [`create`], with this size, and nothing refers to it any more.
    pub(super) unsafe fn unmap(start: NonNull<u8>, bytes: usize) {
        // SAFETY: the caller says so.
        let _ = unsafe { rustix::mm::munmap(start.as_ptr().cast(), bytes) };
    }

    /// Whether no process can change the size, and only the creator can write.
    pub(super) fn is_sealed(file: &OwnedFd) -> bool {
        // Only files in memory have seals at all.
        rustix::fs::fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SEALS))
    }
}

#[cfg(not(target_os = "linux"))]
mod other {
    use std::io;
    use std::os::fd::OwnedFd;
    use std::ptr::NonNull;

    /// The system has no such files.
    pub(super) fn create(_: usize) -> io::Result<(OwnedFd, NonNull<u8>)> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Nothing is mapped.
    ///
    /// # Safety
    /// Always.
    pub(super) unsafe fn unmap(_: NonNull<u8>, _: usize) {}

    /// This system seals no file.
    pub(super) fn is_sealed(_: &OwnedFd) -> bool {
        false
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::Write;

    use rustix::fs::MemfdFlags;
    use rustix::mm::{MapFlags, ProtFlags};

    use super::*;

    fn segment() -> (Segment, OwnedFd) {
        Segment::create(1 << 16).expect("memory")
    }

    #[test]
    fn a_reader_sees_what_the_creator_writes_even_after_its_end() {
        let (mut segment, file) = segment();
        let reader = ForeignSegment::new(file).expect("a segment");
        segment.write(100, b"three words here");
        let mut read = [0; 16];
        reader.read(100, &mut read).expect("it is there");
        assert_eq!(&read, b"three words here");
        drop(segment);
        reader.read(100, &mut read).expect("it is still there");
        assert_eq!(&read, b"three words here");
    }

    #[test]
    fn what_lies_outside_is_not_read() {
        let (_segment, file) = segment();
        let reader = ForeignSegment::new(file).expect("a segment");
        for at in [(1 << 16) - 15, 1 << 16, u64::MAX] {
            assert!(reader.read(at, &mut [0; 16]).is_err(), "{at}");
        }
    }

    #[test]
    #[should_panic(expected = "16 bytes at 65521 of 65536")]
    fn nothing_is_written_outside() {
        segment().0.write((1 << 16) - 15, &[0; 16]);
    }

    #[test]
    fn nobody_else_writes_or_changes_the_size() {
        let (_segment, file) = segment();
        let mut file = File::from(file);
        assert!(file.set_len(1).is_err());
        assert!(file.set_len(1 << 20).is_err());
        assert!(file.write(&[1]).is_err());
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the system chooses an address where nothing is mapped.
        let mapped =
            unsafe { rustix::mm::mmap(ptr::null_mut(), 4096, access, MapFlags::SHARED, &file, 0) };
        assert!(mapped.is_err());
    }

    #[test]
    fn another_file_is_no_segment() {
        let file = tempfile::tempfile().expect("a file");
        let error = ForeignSegment::new(file.into()).expect_err("it is no segment");
        assert_eq!(error.to_string(), "its memory is not sealed");
        let open = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let unsealed = rustix::fs::memfd_create("other", open).expect("a file");
        assert!(ForeignSegment::new(unsealed).is_err());
    }
}
