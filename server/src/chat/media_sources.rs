//! Sources of media other than the request itself: a directory and web servers that the operator allows.

use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ureq::Agent;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};

use super::content_error::ContentError;
use super::file_limit::FileLimit;
use crate::wanted::is_wanted;

/// Maximum time of a download.
const MAX_TIME: Duration = Duration::from_secs(15);
/// Maximum number of downloads at the same time.
const MAX_DOWNLOADS: usize = 16;

/// Number of running downloads.
static DOWNLOADS: AtomicUsize = AtomicUsize::new(0);

/// Sources of media other than the request itself. By default, there are none.
#[derive(Clone, Debug, Default)]
pub struct MediaSources {
    /// Directory without symbolic links in its path.
    directory: Option<PathBuf>,
    /// Lowercase host names.
    domains: Vec<String>,
}

impl MediaSources {
    /// Admits the files in a directory, and the files of web servers. A domain that starts with a period admits its
    /// subdomains.
    ///
    /// # Errors
    /// Returns an error if the directory does not exist.
    pub fn new(directory: Option<&Path>, domains: &[String]) -> io::Result<MediaSources> {
        Ok(MediaSources {
            directory: directory.map(Path::canonicalize).transpose()?,
            domains: domains.iter().map(|domain| domain.to_ascii_lowercase()).collect(),
        })
    }

    /// Reads the file of a `file:` URL, given without its scheme. A path is relative to the directory, or absolute.
    /// Errors do not reveal whether a file outside of the directory exists.
    pub fn file(&self, rest: &str, limit: FileLimit<'_>) -> Result<Vec<u8>, ContentError> {
        let Some(directory) = &self.directory else {
            return Err("files of the server are not read; send the file as a `data:` URL".into());
        };
        let refused = || ContentError::from("cannot read the file: it is not in the directory of --media-path");
        let rest = rest.strip_prefix("//").unwrap_or(rest);
        let rest = rest.strip_prefix("localhost/").unwrap_or(rest);
        let path = percent_encoding::percent_decode_str(rest).decode_utf8();
        let path = directory.join(&*path.map_err(|_| refused())?);
        let path = path.canonicalize().map_err(|_| refused())?;
        if !path.starts_with(directory) || !path.is_file() {
            return Err(refused());
        }
        let file = File::open(&path).map_err(|e| format!("cannot read the file: {e}"))?;
        limit.read(file)
    }

    /// Downloads the file of an `http:` or `https:` URL from an admitted web server.
    ///
    /// # Errors
    /// Returns an error if the file is rejected, cannot be downloaded, or exceeds a limit.
    pub fn download(&self, url: &str, limit: FileLimit<'_>) -> Result<Vec<u8>, ContentError> {
        if self.domains.is_empty() {
            return Err("files of other servers are not fetched; send the file as a `data:` URL".into());
        }
        let uri: Uri = url.parse().map_err(|_| "expected a valid URL".to_owned())?;
        let host = uri.host().unwrap_or_default().to_ascii_lowercase();
        let is_plain = uri
            .authority()
            .is_some_and(|authority| !authority.as_str().contains('@'));
        if !is_plain || uri.port().is_some() || !self.admits(&host) {
            return Err(format!(
                "files of {:?} are not fetched; send the file as a `data:` URL, or add the domain to --media-domains",
                uri.authority().map(|authority| authority.as_str()).unwrap_or_default()
            )
            .into());
        }
        if !is_wanted() {
            return Err("the client has disconnected".into());
        }
        let full = || ContentError::Busy("too many files are downloaded at the same time; retry later".to_owned());
        let _slot = Slot::take().ok_or_else(full)?;
        downloaded(&uri, limit).map_err(|error| error.prefixed(&format!("cannot download the file from {host}")))
    }

    fn admits(&self, host: &str) -> bool {
        self.domains.iter().any(|domain| match domain.strip_prefix('.') {
            Some(parent) => host.strip_suffix(parent).is_some_and(|sub| sub.ends_with('.')),
            None => host == domain,
        })
    }
}

/// Right to download a file.
struct Slot;

impl Slot {
    fn take() -> Option<Slot> {
        let is_free = DOWNLOADS.fetch_add(1, Ordering::Relaxed) < MAX_DOWNLOADS;
        // Dropping a slot releases it, even if it is not returned.
        let slot = Slot;
        is_free.then_some(slot)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        DOWNLOADS.fetch_sub(1, Ordering::Relaxed);
    }
}

fn downloaded(uri: &Uri, limit: FileLimit<'_>) -> Result<Vec<u8>, ContentError> {
    let config = Agent::config_builder()
        // A redirect could lead to any server.
        .max_redirects(0)
        .max_redirects_will_error(false)
        .http_status_as_error(false)
        .timeout_global(Some(MAX_TIME))
        // A proxy would resolve the name again.
        .proxy(None)
        .user_agent(concat!("llama/", env!("CARGO_PKG_VERSION")))
        .build();
    let agent = Agent::with_parts(config, DefaultConnector::default(), PublicResolver::default());
    let response = agent.get(uri).call().map_err(|e| e.to_string())?;
    match response.status().as_u16() {
        200 => limit.read(response.into_body().into_reader()),
        300..400 => Err("redirects are not followed".into()),
        status => Err(format!("the server answered with status {status}").into()),
    }
}

/// Resolver that returns only public addresses. The connection is made to these addresses, so that a name cannot be
/// resolved to another address afterwards.
#[derive(Debug, Default)]
struct PublicResolver(DefaultResolver);

impl Resolver for PublicResolver {
    fn resolve(&self, uri: &Uri, config: &Config, timeout: NextTimeout) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let found = self.0.resolve(uri, config, timeout)?;
        let mut public = self.empty();
        found
            .iter()
            .filter(|address| is_public(address.ip()))
            .for_each(|address| public.push(*address));
        if public.is_empty() {
            return Err(ureq::Error::Io(io::Error::other("its address is not public")));
        }
        Ok(public)
    }
}

/// Returns true for public internet addresses. Addresses of this machine, of private networks, and of address
/// translation are not public.
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => match address.to_ipv4_mapped() {
            Some(address) => is_public_v4(address),
            None => is_public_v6(address),
        },
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let is_special = a == 0
        || a >= 240
        || (a == 100 && (64..128).contains(&b))
        || (a == 192 && b == 0 && c == 0)
        || (a == 198 && (18..20).contains(&b));
    !is_special
        && !address.is_private()
        && !address.is_loopback()
        && !address.is_link_local()
        && !address.is_multicast()
        && !address.is_documentation()
}

/// Global unicast addresses are in 2000::/3. Teredo, documentation, and 6to4 are excluded.
fn is_public_v6(address: Ipv6Addr) -> bool {
    let [first, second, ..] = address.segments();
    let is_special = first == 0x2002 || (first == 0x2001 && (second < 0x200 || second == 0xdb8)) || first == 0x3fff;
    first & 0xe000 == 0x2000 && !is_special
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::http::Charge;

    fn file(sources: &MediaSources, rest: &str, max: usize) -> Result<Vec<u8>, String> {
        let memory = Charge::default();
        let read = sources.file(rest, limit(max, &memory));
        read.map_err(|error| error.of_field("f").message)
    }

    fn download(sources: &MediaSources, url: &str) -> Result<Vec<u8>, ContentError> {
        sources.download(url, limit(9, &Charge::default()))
    }

    /// Tests that take slots run one at a time.
    static SLOTS: Mutex<()> = Mutex::new(());

    fn limit(max: usize, memory: &Charge) -> FileLimit<'_> {
        FileLimit { max, left: max, memory }
    }

    #[test]
    fn downloads_above_the_maximum_get_retryable_error() {
        let sources = MediaSources::new(None, &["localhost".to_owned()]).unwrap();
        let _guard = SLOTS.lock().unwrap();
        let slots: Vec<Slot> = std::iter::from_fn(Slot::take).collect();
        assert!(!slots.is_empty());
        let error = download(&sources, "http://localhost/a.png").unwrap_err();
        drop(slots);
        assert_eq!(error.of_field("f").status.as_u16(), 503);
    }

    #[test]
    fn files_are_read_only_from_the_directory() {
        let root = tempfile::tempdir().unwrap();
        let inside = root.path().join("media");
        std::fs::create_dir_all(inside.join("a b")).unwrap();
        std::fs::write(inside.join("a b/c.png"), "hello").unwrap();
        std::fs::write(root.path().join("secret"), "secret").unwrap();
        #[cfg(unix)]
        std::os::unix::fs::symlink(root.path().join("secret"), inside.join("link")).unwrap();
        let sources = MediaSources::new(Some(&inside), &[]).unwrap();
        let absolute = format!("//{}/a%20b/c.png", inside.display());
        for rest in [
            "//a%20b/c.png",
            "a%20b/c.png",
            "//a b/../a b/c.png",
            "//localhost/a b/c.png",
            &absolute,
        ] {
            assert_eq!(file(&sources, rest, 5).as_deref(), Ok(&b"hello"[..]), "{rest}");
        }
        let outside = format!("//{}/secret", root.path().display());
        for rest in [
            "//../secret",
            "//link",
            "//missing",
            "//",
            "//%ff",
            "///etc/passwd",
            &outside,
        ] {
            let error = file(&sources, rest, 9).unwrap_err();
            assert_eq!(
                error, "f: cannot read the file: it is not in the directory of --media-path",
                "{rest}"
            );
        }
        assert!(
            file(&sources, "//a%20b/c.png", 4)
                .unwrap_err()
                .contains("more than 4 bytes")
        );
        assert!(
            file(&MediaSources::default(), "//a", 9)
                .unwrap_err()
                .contains("are not read")
        );
        assert!(MediaSources::new(Some(&inside.join("no")), &[]).is_err());
    }

    #[test]
    fn unlisted_domains_and_private_addresses_are_rejected() {
        let _guard = SLOTS.lock().unwrap();
        let domains = ["Example.org", ".example.net", "127.0.0.1", "[::1]", "localhost"].map(str::to_owned);
        let sources = MediaSources::new(None, &domains).unwrap();
        assert!(sources.admits("example.org") && sources.admits("a.b.example.net"));
        for url in [
            "https://www.example.org/a.png",
            "https://example.net/a.png",
            "https://badexample.net/a.png",
            "https://example.org@evil.org/a.png",
            "https://user@example.org/a.png",
            "https://example.org:8443/a.png",
            "https://evil.org/example.org",
        ] {
            let error = download(&sources, url).unwrap_err().of_field("f").message;
            assert!(error.contains("--media-domains"), "{url}: {error}");
        }
        for url in ["http://127.0.0.1/a.png", "http://[::1]/a.png", "http://localhost/a.png"] {
            let error = download(&sources, url).unwrap_err().of_field("f").message;
            assert!(error.contains("not public"), "{url}: {error}");
        }
        assert!(
            download(&MediaSources::default(), "https://a/b")
                .unwrap_err()
                .of_field("f")
                .message
                .contains("are not fetched")
        );
    }

    #[test]
    fn public_addresses_exclude_special_ranges() {
        for address in [
            "8.8.8.8",
            "100.63.0.1",
            "172.32.0.1",
            "198.20.0.1",
            "2606:4700::1",
            "::ffff:8.8.8.8",
        ] {
            assert!(is_public(address.parse().unwrap()), "{address}");
        }
        for address in [
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "127.0.0.1",
            "169.254.169.254",
            "172.16.0.1",
            "192.0.0.8",
            "192.0.2.1",
            "192.168.1.1",
            "198.18.0.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:10.0.0.1",
            "::7f00:1",
            "64:ff9b::a00:1",
            "2001::1",
            "2001:db8::1",
            "2002:a00:1::",
            "fc00::1",
            "fe80::1",
            "ff02::1",
        ] {
            assert!(!is_public(address.parse().unwrap()), "{address}");
        }
    }
}
