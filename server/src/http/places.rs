//! Connection slots. Connections whose clients do not read are closed, and so are unused connections if all slots are
//! taken.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::{Frame, Incoming, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::Sleep;
use tower::ServiceExt;

use super::idle::{Answering, Phase};

/// Time after which a connection without a request, or with a client that does not read, may lose its slot.
const MIN_IDLE: Duration = Duration::from_secs(1);
/// Time between two attempts to get a slot.
const RETRY: Duration = Duration::from_millis(50);

/// All connection slots.
pub struct Places {
    max: usize,
    taken: Mutex<Vec<Arc<Connection>>>,
    freed: Notify,
}

/// A connection with its slot.
pub struct Connection {
    /// Network of the client; `None` for Unix sockets.
    address: Option<IpAddr>,
    phase: Phase,
    opened: Instant,
    /// Time in milliseconds since `opened` when the last request ended.
    idle_since: AtomicU64,
    /// Time in milliseconds since `opened` when the client stopped reading; [`READS`] while the client reads.
    blocked_since: AtomicU64,
    /// Closes the connection.
    end: Notify,
}

/// Value of `blocked_since` while the client reads.
const READS: u64 = u64::MAX;

/// A connection slot; dropping it releases the slot.
pub struct Place {
    places: Arc<Places>,
    connection: Arc<Connection>,
}

impl Places {
    /// Creates `max` free slots.
    pub fn new(max: usize) -> Arc<Places> {
        Arc::new(Places {
            max,
            taken: Mutex::default(),
            freed: Notify::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Connection>>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a slot. If all slots are taken, closes an idle connection of the address with the most connections:
    /// the one that has been idle the longest.
    pub async fn take(self: &Arc<Places>, address: Option<IpAddr>) -> Place {
        loop {
            let freed = self.freed.notified();
            if let Some(place) = self.try_take(address) {
                return place;
            }
            if let Some(unused) = self.unused() {
                unused.end.notify_one();
            }
            // No event reports that a connection becomes unused.
            let _ = tokio::time::timeout(RETRY, freed).await;
        }
    }

    fn try_take(self: &Arc<Places>, address: Option<IpAddr>) -> Option<Place> {
        let mut taken = self.lock();
        if taken.len() >= self.max {
            return None;
        }
        let connection = Arc::new(Connection {
            address: address.map(network),
            phase: Phase::default(),
            opened: Instant::now(),
            idle_since: AtomicU64::new(0),
            blocked_since: AtomicU64::new(READS),
            end: Notify::new(),
        });
        taken.push(connection.clone());
        let places = self.clone();
        Some(Place { places, connection })
    }

    fn unused(&self) -> Option<Arc<Connection>> {
        let taken = self.lock();
        let mut n_by_address: HashMap<Option<IpAddr>, usize> = HashMap::new();
        taken
            .iter()
            .for_each(|c| *n_by_address.entry(c.address).or_default() += 1);
        let unused = taken.iter().filter_map(|c| Some((c.unused_for()?, c)));
        let longest = unused.max_by_key(|(time, c)| (n_by_address[&c.address], *time));
        longest.map(|(_, c)| c.clone())
    }
}

/// Returns the address of a client: of IPv6, the network that one client usually has.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6((v6.to_bits() >> 64 << 64).into()),
        v4 => v4,
    }
}

impl Connection {
    fn now(&self) -> u64 {
        self.opened.elapsed().as_millis() as u64
    }

    /// Returns how long the connection has been unused, if long enough to be closed.
    fn unused_for(&self) -> Option<Duration> {
        let blocked_since = self.blocked_since.load(Ordering::Relaxed);
        let since = if blocked_since != READS {
            blocked_since
        } else if !self.phase.is_answering() {
            self.idle_since.load(Ordering::Relaxed)
        } else {
            return None;
        };
        let time = Duration::from_millis(self.now().saturating_sub(since));
        (time >= MIN_IDLE).then_some(time)
    }
}

impl Place {
    /// Returns the stream with a limit on the time that a write may wait for the client.
    pub fn stream<S>(&self, inner: S, t_write: Duration) -> TimedStream<S> {
        TimedStream {
            inner,
            connection: self.connection.clone(),
            t_write,
            timer: None,
        }
    }

    /// Returns the phase of the connection.
    pub fn phase(&self) -> Phase {
        self.connection.phase.clone()
    }

    /// Resolves when the connection loses its slot.
    pub async fn lost(&self) {
        self.connection.end.notified().await;
    }

    /// Answers a request.
    pub fn answer(
        &self,
        routes: Router,
        request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<Body>, Infallible>> + Send + 'static {
        let active = Active {
            connection: self.connection.clone(),
            _answering: self.connection.phase.begin(),
        };
        async move {
            let response = routes.oneshot(request).await?;
            Ok(response.map(|body| Body::new(HeldBody { body, _active: active })))
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.lock();
        taken.retain(|connection| !Arc::ptr_eq(connection, &self.connection));
        drop(taken);
        self.places.freed.notify_one();
    }
}

/// A request that is being answered.
struct Active {
    connection: Arc<Connection>,
    _answering: Answering,
}

impl Drop for Active {
    fn drop(&mut self) {
        // The phase changes afterwards, so that an idle connection never has an outdated time.
        let connection = &self.connection;
        connection.idle_since.store(connection.now(), Ordering::Relaxed);
    }
}

/// Body of a response; the request ends with it.
struct HeldBody {
    body: Body,
    _active: Active,
}

impl HttpBody for HeldBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body.frame()).poll(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Stream of a connection whose writes fail if the client does not read.
pub struct TimedStream<S> {
    inner: S,
    connection: Arc<Connection>,
    t_write: Duration,
    /// Runs while a write waits.
    timer: Option<Pin<Box<Sleep>>>,
}

impl<S> TimedStream<S> {
    /// Fails a write that has waited too long.
    fn timed<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        let blocked_since = &self.connection.blocked_since;
        if written.is_ready() {
            if self.timer.take().is_some() {
                blocked_since.store(READS, Ordering::Relaxed);
            }
            return written;
        }
        let timer = self.timer.get_or_insert_with(|| {
            blocked_since.store(self.connection.now(), Ordering::Relaxed);
            Box::pin(tokio::time::sleep(self.t_write))
        });
        match timer.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.timed(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(context, parts);
        self.timed(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.inner).poll_flush(context);
        // A flush without a pending write does not show that the client reads.
        match flushed {
            Poll::Ready(Ok(())) => flushed,
            _ => self.timed(context, flushed),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = Pin::new(&mut self.inner).poll_shutdown(context);
        self.timed(context, ended)
    }
}
