//! Time limit of request heads. Between requests, a kept connection may be idle for much longer.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// Phase of a connection: even between requests, odd while a request is answered. Each change increments it.
#[derive(Clone, Default)]
pub struct Phase(Arc<AtomicUsize>);

impl Phase {
    /// Marks that a request is answered until the returned value is dropped.
    pub fn begin(&self) -> Answering {
        self.0.fetch_add(1, Ordering::AcqRel);
        Answering(self.clone())
    }

    /// Returns true while a request is answered.
    pub fn is_answering(&self) -> bool {
        !self.now().is_multiple_of(2)
    }

    fn now(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
}

/// A request that is being answered.
pub struct Answering(Phase);

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.0.fetch_add(1, Ordering::AcqRel);
    }
}

/// A stream that fails if a request head is incomplete `t_head` after its first byte.
pub struct HeadLimit<T> {
    stream: T,
    phase: Phase,
    t_head: Duration,
    /// Phase at the start of a request head, and the time limit of the head.
    head: Option<(usize, Pin<Box<Sleep>>)>,
}

impl<T> HeadLimit<T> {
    /// Wraps a stream.
    pub fn new(stream: T, phase: Phase, t_head: Duration) -> HeadLimit<T> {
        HeadLimit {
            stream,
            phase,
            t_head,
            head: None,
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for HeadLimit<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let now = self.phase.now();
        // The head is complete once its request is answered.
        if self.head.as_ref().is_some_and(|(phase, _)| *phase != now) {
            self.head = None;
        }
        let n_before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > n_before && !self.phase.is_answering() && self.head.is_none() {
            self.head = Some((now, Box::pin(sleep(self.t_head))));
        }
        if let Some((_, limit)) = &mut self.head
            && read.is_pending()
        {
            ready!(limit.as_mut().poll(cx));
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        read
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for HeadLimit<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
    }
}
