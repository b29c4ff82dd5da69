//! Connections: taken as they come, up to a number, with limits on how slow a client may be, until the server is told to end.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

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

/// Serves until `end`, and then until requests under way are done, or no longer than agreed. True if all were done.
pub async fn serve(
    listener: TcpListener,
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
        let stream = match accepted {
            Ok((stream, _)) => stream,
            // The client has gone, or there are no more files: others may come.
            Err(_) => {
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        // Small pieces are to go out at once; where that cannot be set they go out a little later.
        let _ = stream.set_nodelay(true);
        let service = TowerToHyperService::new(routes.clone());
        let connection = graceful.watch(builder.serve_connection(TokioIo::new(stream), service));
        tokio::spawn(async move {
            // Whatever becomes of a connection is its client's affair.
            let _ = connection.await;
            drop(place);
        });
    }
    drop(listener);
    Ok(tokio::time::timeout(params.t_drain, graceful.shutdown()).await.is_ok())
}
