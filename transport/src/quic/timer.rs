//! Tokio as quinn's runtime, with timers that are moved instead of extended.
//!
//! A timer of tokio that is reset to a later time still wakes its thread at the earlier one. QUIC
//! moves a link's timer to later whenever an acknowledgement arrives. At rest, that would be one
//! wake-up in three.

use std::io;
use std::net::UdpSocket;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use quinn::{AsyncTimer, AsyncUdpSocket, Runtime};
use tokio::time::{Sleep, sleep_until};

use super::socket::Udp;

/// A timer that moves less far is extended. On a busy link, which has much to do at the earlier
/// time anyway, that costs less.
const TIMER_EXTENDED_BELOW: Duration = Duration::from_millis(10);

/// Quinn's runtime with the timers that the module describes.
#[derive(Debug)]
pub(super) struct TokioTimers;

impl Runtime for TokioTimers {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        Box::pin(Timer(Box::pin(sleep_until(at.into()))))
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        tokio::spawn(future);
    }

    fn wrap_udp_socket(&self, socket: UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        Ok(Arc::new(Udp::new(socket)?))
    }

    fn now(&self) -> Instant {
        tokio::time::Instant::now().into_std()
    }
}

#[derive(Debug)]
struct Timer(Pin<Box<Sleep>>);

impl AsyncTimer for Timer {
    fn reset(mut self: Pin<&mut Self>, at: Instant) {
        let at = at.into();
        if at > self.0.deadline() + TIMER_EXTENDED_BELOW {
            self.0.set(sleep_until(at));
        } else {
            self.0.as_mut().reset(at);
        }
    }

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        Future::poll(self.0.as_mut(), context)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[tokio::test]
    async fn a_timer_ends_when_it_was_set_to_last() {
        let ms = Duration::from_millis;
        for (first, then) in [(ms(5), ms(50)), (ms(50), ms(5)), (ms(5), ms(7))] {
            let began = TokioTimers.now();
            let mut timer = Timer(Box::pin(sleep_until((began + first).into())));
            let pending = poll_fn(|context| {
                let is_pending = Pin::new(&mut timer).poll(context).is_pending();
                Poll::Ready(is_pending)
            });
            pending.await;
            Pin::new(&mut timer).reset(began + then);
            assert_eq!(timer.0.deadline().into_std(), began + then);
            poll_fn(|context| Pin::new(&mut timer).poll(context)).await;
            assert!(TokioTimers.now() >= began + then, "after {first:?}");
        }
    }
}
