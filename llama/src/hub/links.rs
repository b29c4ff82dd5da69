//! Access to files of the cache that are not links.

use std::fs::OpenOptions;

/// Lets files be opened only if they are files: links and pipes are errors.
pub fn without_links(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;

        use rustix::fs::OFlags;

        // Opening a pipe would otherwise wait for its reader.
        options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32);
    }
    options
}
