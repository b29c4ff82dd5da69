//! Accepts connections, limits their number and slow clients, and shuts down gracefully.

use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use futures_util::future::{BoxFuture, select_all};
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use super::idle::HeadLimit;
use super::places::{Place, Places};
use crate::api::ApiError;

/// Connection limits.
#[derive(Clone, Debug)]
pub struct ListenParams {
    /// Maximum concurrent connections. Further connections replace those without a request, or wait in the
    /// backlog.
    pub max_connections: usize,
    /// Maximum time to receive a request head.
    pub t_head: Duration,
    /// Maximum time that a write waits for a client that does not read.
    pub t_write: Duration,
    /// Maximum time between two requests on a connection.
    pub t_idle: Duration,
    /// Maximum time for running requests during shutdown.
    pub t_drain: Duration,
}

impl Default for ListenParams {
    fn default() -> ListenParams {
        ListenParams {
            max_connections: 1024,
            t_head: Duration::from_secs(20),
            t_write: Duration::from_secs(30),
            // Longer than common clients and reverse proxies keep idle connections in their pools.
            t_idle: Duration::from_secs(120),
            t_drain: Duration::from_secs(30),
        }
    }
}

/// Read buffer size of a connection, which limits the request head.
const MAX_HEAD: usize = 64 << 10;

/// Listening socket.
pub enum Listener {
    /// TCP.
    Tcp(TcpListener),
    /// TCP listener with TLS.
    Tls(TcpListener, TlsAcceptor),
    /// Listener on a Unix domain socket.
    #[cfg(unix)]
    Unix(tokio::net::UnixListener),
    /// Several listeners; at least one.
    Several(Vec<Listener>),
}

/// Accepted connection, before the TLS handshake.
enum Accepted {
    Tcp(TcpStream),
    Tls(TcpStream, TlsAcceptor),
    #[cfg(unix)]
    Unix(tokio::net::UnixStream),
}

impl Accepted {
    /// Returns the address of the client; `None` for Unix sockets.
    fn address(&self) -> Option<IpAddr> {
        match self {
            Accepted::Tcp(stream) | Accepted::Tls(stream, _) => stream.peer_addr().ok().map(|peer| peer.ip()),
            #[cfg(unix)]
            Accepted::Unix(_) => None,
        }
    }
}

impl Listener {
    fn accept(&self) -> BoxFuture<'_, io::Result<Accepted>> {
        Box::pin(self.accept_next())
    }

    async fn accept_next(&self) -> io::Result<Accepted> {
        // Send small writes immediately. Failure only delays them.
        let without_delay = |stream: TcpStream| {
            let _ = stream.set_nodelay(true);
            stream
        };
        Ok(match self {
            Listener::Tcp(listener) => Accepted::Tcp(without_delay(listener.accept().await?.0)),
            Listener::Tls(listener, tls) => Accepted::Tls(without_delay(listener.accept().await?.0), tls.clone()),
            #[cfg(unix)]
            Listener::Unix(listener) => Accepted::Unix(listener.accept().await?.0),
            Listener::Several(listeners) => {
                let each = listeners.iter().map(Listener::accept);
                select_all(each).await.0?
            }
        })
    }
}

/// Time for the errors of requests that the end of `t_drain` cuts off.
const T_CUTOFF: Duration = Duration::from_secs(1);

/// Signal for the end of `t_drain`. Each request has a clone as an extension.
#[derive(Clone, Debug)]
pub struct Cutoff(watch::Receiver<bool>);

impl Cutoff {
    /// Resolves when requests must end.
    pub async fn reached(&mut self) {
        // An error means that the server has shut down.
        let _ = self.0.wait_for(|is_reached| *is_reached).await;
    }

    /// Returns the error of a request that the cutoff ends.
    pub fn error() -> ApiError {
        ApiError::unavailable("request aborted: the server is shutting down")
    }
}

/// Serves connections until `end` resolves, then waits up to `t_drain` for running requests. Returns true if
/// all of them finished. Other requests get an error, as a response or as the last event of their stream.
pub async fn serve(
    listener: Listener,
    routes: Router,
    params: ListenParams,
    end: impl Future<Output = ()>,
) -> io::Result<bool> {
    let graceful = GracefulShutdown::new();
    let places = Places::new(params.max_connections);
    let (cut, cutoff) = watch::channel(false);
    let mut end = pin!(end);
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(params.t_idle)
        // Some clients compare the names of llama-server's headers with their case.
        .title_case_headers(true)
        .max_buf_size(MAX_HEAD);
    loop {
        let next = async {
            let accepted = listener.accept().await?;
            let place = places.take(accepted.address()).await;
            io::Result::Ok((place, accepted))
        };
        let next = tokio::select! {
            next = next => next,
            () = &mut end => break,
        };
        // The client disconnected, or file descriptors are exhausted. Retry after a pause.
        let Ok((place, accepted)) = next else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let server = Connections {
            builder: builder.clone(),
            routes: routes.clone(),
            t_head: params.t_head,
            t_write: params.t_write,
            cutoff: Cutoff(cutoff.clone()),
        };
        let (watcher, t_head) = (graceful.watcher(), params.t_head);
        tokio::spawn(async move {
            match accepted {
                Accepted::Tcp(stream) => server.serve(stream, place, watcher).await,
                Accepted::Tls(stream, tls) => {
                    // Drop connections whose TLS handshake fails or times out.
                    let handshake = tokio::time::timeout(t_head, tls.accept(stream));
                    let shaken = tokio::select! {
                        shaken = handshake => shaken,
                        () = place.lost() => return,
                    };
                    if let Ok(Ok(stream)) = shaken {
                        server.serve(stream, place, watcher).await;
                    }
                }
                #[cfg(unix)]
                Accepted::Unix(stream) => server.serve(stream, place, watcher).await,
            }
        });
    }
    drop(listener);
    let mut finished = pin!(graceful.shutdown());
    if tokio::time::timeout(params.t_drain, &mut finished).await.is_ok() {
        return Ok(true);
    }
    cut.send_replace(true);
    // Clients may not read, so the wait has a limit.
    let _ = tokio::time::timeout(T_CUTOFF, finished).await;
    Ok(false)
}

/// Settings of all connections.
struct Connections {
    builder: http1::Builder,
    routes: Router,
    t_head: Duration,
    t_write: Duration,
    cutoff: Cutoff,
}

impl Connections {
    /// Serves the requests of one connection.
    async fn serve(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, place: Place, watcher: Watcher) {
        let stream = HeadLimit::new(place.stream(stream, self.t_write), place.phase(), self.t_head);
        let answer = service_fn(|mut request: Request<Incoming>| {
            request.extensions_mut().insert(self.cutoff.clone());
            place.answer(self.routes.clone(), request)
        });
        let connection = self.builder.serve_connection(TokioIo::new(stream), answer);
        // Connection errors affect only this client.
        tokio::select! {
            _ = watcher.watch(connection) => {}
            () = place.lost() => {}
        }
    }
}
