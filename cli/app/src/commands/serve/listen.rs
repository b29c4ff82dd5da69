//! Opens the listening socket of the server: TCP, optionally with TLS, or a Unix socket.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

use server::http::{Listener, tls};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tracing::info;

use super::args::ServeArgs;
use crate::failure::{Failure, Outcome};

/// Starts listening. Also returns the address for messages.
pub fn listen(args: &ServeArgs, has_keys: bool, runtime: &Runtime) -> Outcome<(Listener, String)> {
    if args.host.ends_with(".sock") {
        return socket(args, runtime);
    }
    let certificate = args.ssl_cert_file.as_ref().zip(args.ssl_key_file.as_ref());
    let acceptor = certificate
        .map(|(certificate, key)| tls(certificate, key))
        .transpose()
        .map_err(|e| Failure::from(e).of_option("--ssl-cert-file and --ssl-key-file:"))?;
    let (mut listeners, mut port, mut place) = (Vec::new(), args.port, String::new());
    for host in args.host.split(',').map(str::trim) {
        let address = address(host, port, has_keys || args.insecure)?;
        let listener = runtime.block_on(TcpListener::bind(address)).map_err(|e| {
            let remedy = match e.kind() {
                io::ErrorKind::AddrNotAvailable => "use --host to choose an address of this machine",
                io::ErrorKind::PermissionDenied => "use --port to choose a port above 1023",
                _ => "use --port to choose another port",
            };
            Failure::new(format_args!("cannot listen on {address}: {e}; {remedy}"))
        })?;
        let address = listener.local_addr()?;
        // With --port 0, the first address chooses the port.
        port = address.port();
        let (listener, scheme) = match &acceptor {
            None => (Listener::Tcp(listener), "http"),
            Some(acceptor) => (Listener::Tls(listener, acceptor.clone()), "https"),
        };
        listeners.push(listener);
        let url = format!("{scheme}://{address}{}/v1", args.api_prefix);
        if place.is_empty() {
            place = url;
        } else {
            info!("also listening at {url}");
        }
    }
    Ok((Listener::Several(listeners), place))
}

/// Returns the address to listen on. A non-loopback address must be allowed by an API key or `--insecure`.
fn address(host: &str, port: u16, allows_others: bool) -> Outcome<SocketAddr> {
    if host.ends_with(".sock") {
        return Err(Failure::new(format_args!(
            "--host {host}: a Unix socket cannot be combined with other addresses"
        )));
    }
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let wrong = |e: &dyn std::fmt::Display| Failure::new(format_args!("--host {host}: {e}"));
    let addresses: Vec<SocketAddr> = (host, port).to_socket_addrs().map_err(|e| wrong(&e))?.collect();
    let address = *addresses.first().ok_or_else(|| wrong(&"no address found"))?;
    if !address.ip().is_loopback() && !allows_others {
        return Err(Failure::new(format_args!(
            "--host {host} accepts connections from other machines; set --api-key, or --insecure to allow access without a key"
        )));
    }
    Ok(address)
}

#[cfg(unix)]
fn socket(args: &ServeArgs, runtime: &Runtime) -> Outcome<(Listener, String)> {
    let path = &args.host;
    // A socket without a listener is left over from a killed server.
    let is_socket =
        std::fs::symlink_metadata(path).is_ok_and(|file| std::os::unix::fs::FileTypeExt::is_socket(&file.file_type()));
    if is_socket && std::os::unix::net::UnixStream::connect(path).is_err() {
        std::fs::remove_file(path)?;
    }
    let bind = async { tokio::net::UnixListener::bind(path) };
    let listener = runtime.block_on(bind);
    let listener = listener.map_err(|e| Failure::new(format_args!("cannot listen on {path}: {e}")))?;
    Ok((Listener::Unix(listener), format!("Unix socket {path}")))
}

#[cfg(not(unix))]
fn socket(args: &ServeArgs, _: &Runtime) -> Outcome<(Listener, String)> {
    let path = &args.host;
    Err(Failure::new(format_args!(
        "--host {path}: Unix sockets are not supported on this system"
    )))
}
