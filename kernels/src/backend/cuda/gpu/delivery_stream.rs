//! Parameters on their way to the GPU, while it goes on computing.
//!
//! Deliveries have a stream of their own, and each ends with an event. Work that uses delivered
//! parameters makes the computing stream wait for that event, and for no later one.

use std::collections::VecDeque;
use std::sync::Arc;

use cudarc::driver::result::DriverError as Failure;
use cudarc::driver::{CudaContext, CudaEvent, CudaStream};

use super::super::driver::DeliveryId;
use super::devices::failed;
use super::error::CudaError;

/// With so many deliveries under way, [`DeliveryStream::record`] looks whether the oldest is over.
const EVENTS: usize = 1024;

/// The stream, and the events of the deliveries under way on it.
pub struct DeliveryStream {
    stream: Arc<CudaStream>,
    last: u64,
    /// Oldest first. A missing delivery is over, or the computation has waited for it.
    under_way: VecDeque<(DeliveryId, CudaEvent)>,
    /// Events of deliveries that are not under way any more, for later ones.
    spare: Vec<CudaEvent>,
}

impl DeliveryStream {
    /// Makes the stream.
    ///
    /// # Errors
    /// [`CudaError::Failed`].
    pub fn new(context: &Arc<CudaContext>) -> Result<Self, CudaError> {
        let stream = context.new_stream().map_err(|error| failed("cuStreamCreate", error))?;
        Ok(Self { stream, last: 0, under_way: VecDeque::new(), spare: Vec::new() })
    }

    /// The stream on which deliveries are enqueued.
    pub fn stream(&self) -> Arc<CudaStream> {
        self.stream.clone()
    }

    /// The number of the last delivery.
    pub fn last(&self) -> DeliveryId {
        DeliveryId(self.last)
    }

    /// Ends a delivery, which is the last one from now on.
    pub fn record(&mut self) -> Result<(), Failure> {
        // No work need wait for a delivery that is over. To ask costs a call, and most are waited
        // for soon.
        if self.under_way.len() >= EVENTS
            && let Some((_, oldest)) = self.under_way.front()
            && oldest.try_is_complete()?
        {
            self.spare.extend(self.under_way.pop_front().map(|(_, event)| event));
        }
        let event = match self.spare.pop() {
            Some(event) => event,
            None => self.stream.context().new_event(None)?,
        };
        event.record(&self.stream)?;
        self.last += 1;
        self.under_way.push_back((self.last(), event));
        Ok(())
    }

    /// Makes all later work on `computing` wait for this delivery.
    pub fn wait_for(
        &mut self,
        delivery: DeliveryId,
        computing: &CudaStream,
    ) -> Result<(), Failure> {
        let concerned = self.under_way.partition_point(|(other, _)| *other <= delivery);
        // The stream keeps the order, so the last of these events covers the earlier ones.
        let events = self.under_way.drain(..concerned).map(|(_, event)| event);
        let before = self.spare.len();
        self.spare.extend(events);
        // A wait is for what an event was recorded for last, so the event may be recorded again.
        let last = self.spare[before..].last();
        last.map_or(Ok(()), |event| computing.wait(event))
    }
}
