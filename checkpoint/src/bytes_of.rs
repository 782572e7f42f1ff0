//! Numbers as little-endian bytes, and back, through small buffers.

/// Values that are converted at once.
const PIECE: usize = 16 << 10;

/// Turns numbers into bytes, piece by piece, so that no caller holds them twice.
#[derive(Default)]
pub(crate) struct Encoder {
    bytes: Vec<u8>,
}

impl Encoder {
    /// Hands the bytes of all values to `take`.
    pub(crate) fn each(&mut self, values: &[f32], take: &mut dyn FnMut(&[u8])) {
        let done: Result<(), std::convert::Infallible> = self.try_each(values, &mut |bytes| {
            take(bytes);
            Ok(())
        });
        match done {
            Ok(()) => {}
        }
    }

    /// Hands the bytes of all values to `take`, until it fails.
    pub(crate) fn try_each<E>(
        &mut self,
        values: &[f32],
        take: &mut dyn FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        for piece in values.chunks(PIECE) {
            self.bytes.resize(4 * piece.len(), 0);
            for (bytes, value) in self.bytes.as_chunks_mut().0.iter_mut().zip(piece) {
                *bytes = value.to_le_bytes();
            }
            take(&self.bytes)?;
        }
        Ok(())
    }
}

/// Reads little-endian values. `bytes` has four for each value.
pub(crate) fn decode(bytes: &[u8], values: &mut [f32]) {
    assert_eq!(bytes.len(), 4 * values.len(), "four bytes for each value");
    for (bytes, value) in bytes.as_chunks().0.iter().zip(values) {
        *value = f32::from_le_bytes(*bytes);
    }
}
