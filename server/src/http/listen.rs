//! Accepts connections, limits their number and slow clients, and shuts down gracefully.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

/// Connection limits.
#[derive(Clone, Debug)]
pub struct ListenParams {
    /// Maximum concurrent connections; further connections wait in the backlog.
    pub max_connections: usize,
    /// Maximum time to receive a request head.
    pub t_head: Duration,
    /// Maximum time for running requests during shutdown.
    pub t_drain: Duration,
}

impl Default for ListenParams {
    fn default() -> ListenParams {
        ListenParams {
            max_connections: 1024,
            t_head: Duration::from_secs(20),
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
}

/// Accepted connection, before the TLS handshake.
enum Accepted {
    Tcp(TcpStream),
    Tls(TcpStream, TlsAcceptor),
    #[cfg(unix)]
    Unix(tokio::net::UnixStream),
}

impl Listener {
    async fn accept(&self) -> io::Result<Accepted> {
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
        })
    }
}

/// Serves connections until `end` resolves, then waits up to `t_drain` for running requests. Returns true if
/// all of them finished.
pub async fn serve(
    listener: Listener,
    routes: Router,
    params: ListenParams,
    end: impl Future<Output = ()>,
) -> io::Result<bool> {
    let graceful = GracefulShutdown::new();
    let places = Arc::new(Semaphore::new(params.max_connections));
    let mut end = pin!(end);
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(params.t_head)
        .max_buf_size(MAX_HEAD);
    loop {
        let next = async {
            let permit = places.clone().acquire_owned().await;
            (permit, listener.accept().await)
        };
        let (permit, accepted) = tokio::select! {
            next = next => next,
            () = &mut end => break,
        };
        // The client disconnected, or file descriptors are exhausted. Retry after a pause.
        let Ok(accepted) = accepted else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let (builder, routes, watcher, t_head) = (builder.clone(), routes.clone(), graceful.watcher(), params.t_head);
        tokio::spawn(async move {
            match accepted {
                Accepted::Tcp(stream) => serve_connection(stream, &builder, routes, watcher).await,
                Accepted::Tls(stream, tls) => {
                    // Drop connections whose TLS handshake fails or times out.
                    if let Ok(Ok(stream)) = tokio::time::timeout(t_head, tls.accept(stream)).await {
                        serve_connection(stream, &builder, routes, watcher).await;
                    }
                }
                #[cfg(unix)]
                Accepted::Unix(stream) => serve_connection(stream, &builder, routes, watcher).await,
            }
            drop(permit);
        });
    }
    drop(listener);
    Ok(tokio::time::timeout(params.t_drain, graceful.shutdown()).await.is_ok())
}

/// Serves the requests of one connection.
async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    builder: &http1::Builder,
    routes: Router,
    watcher: Watcher,
) {
    let connection = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes));
    // Connection errors affect only this client.
    let _ = watcher.watch(connection).await;
}
