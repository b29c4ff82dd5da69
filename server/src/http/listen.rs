//! Connections: taken as they come, up to a number, with limits on how slow a client may be, until the server is told to end.

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

/// Limits of connections.
#[derive(Clone, Debug)]
pub struct ListenParams {
    /// Connections at once; further ones wait until one ends.
    pub max_connections: usize,
    /// Most time for the head of a request to come.
    pub t_head: Duration,
    /// Most time for requests under way once the server is to end.
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

/// Bytes of a connection that are read ahead, which bounds the head of a request.
const MAX_HEAD: usize = 64 << 10;

/// Where connections come from.
pub enum Listener {
    /// A port.
    Tcp(TcpListener),
    /// The same, with TLS.
    Tls(TcpListener, TlsAcceptor),
    /// A socket in the file system.
    #[cfg(unix)]
    Unix(tokio::net::UnixListener),
}

/// A connection before anything was said.
enum Accepted {
    Tcp(TcpStream),
    Tls(TcpStream, TlsAcceptor),
    #[cfg(unix)]
    Unix(tokio::net::UnixStream),
}

impl Listener {
    async fn accept(&self) -> io::Result<Accepted> {
        // Small pieces are to go out at once; where that cannot be set they go out a little later.
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

/// Serves until `end`, and then until requests under way are done, or no longer than agreed. True if all were done.
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
            let place = places.clone().acquire_owned().await;
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            next = next => next,
            () = &mut end => break,
        };
        // The client has gone, or there are no more files: others may come.
        let Ok(accepted) = accepted else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let (builder, routes, watcher, t_head) = (builder.clone(), routes.clone(), graceful.watcher(), params.t_head);
        tokio::spawn(async move {
            match accepted {
                Accepted::Tcp(stream) => converse(stream, &builder, routes, watcher).await,
                Accepted::Tls(stream, tls) => {
                    // Who does not agree on keys in time is no client.
                    if let Ok(Ok(stream)) = tokio::time::timeout(t_head, tls.accept(stream)).await {
                        converse(stream, &builder, routes, watcher).await;
                    }
                }
                #[cfg(unix)]
                Accepted::Unix(stream) => converse(stream, &builder, routes, watcher).await,
            }
            drop(place);
        });
    }
    drop(listener);
    Ok(tokio::time::timeout(params.t_drain, graceful.shutdown()).await.is_ok())
}

/// Answers the requests of a connection.
async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    builder: &http1::Builder,
    routes: Router,
    watcher: Watcher,
) {
    let connection = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes));
    // Whatever becomes of a connection is its client's affair.
    let _ = watcher.watch(connection).await;
}
