//! The limit on open files, and the number of open files that clients' connections may take.
//!
//! Clients can take only a fixed share; the rest is for upstream connections, files and the admin listener.

/// Most connections to an admin listener: probes, scrapers and operators.
///
/// Source: own choice: a probe, two scrapers and some open pages take about ten.
pub const ADMIN_CONNECTIONS_MAX: usize = 32;

/// Open files other than connections of clients, of operators and to upstreams: those of the runtime, of libraries and
/// of the cache.
///
/// Source: own choice: a worker with a disk tier has some 40.
const RESERVED: usize = 64;

/// Most connections of clients unless a flag sets another number, even if more open files are allowed.
///
/// Source: own choice: four times the requests that a router answers at a time; a connection takes some 20 KiB.
const CONNECTIONS_MAX_DEFAULT: usize = 16_384;

/// Fewest connections of clients that are allowed unless a flag sets another number.
///
/// Source: own choice: a server with few open files still serves a few clients.
const CONNECTIONS_MIN_DEFAULT: usize = 8;

/// Raises the soft limit on open files as far as possible; returns it.
///
/// Errors: the system's.
pub fn raise() -> std::io::Result<u64> {
    rlimit::increase_nofile_limit(u64::MAX)
}

/// Returns the number of client connections that the limit on open files allows: each connection may need another one
/// to an upstream.
pub fn connections_max() -> usize {
    // If the limit is unknown, it is treated as unlimited.
    let limit = rlimit::Resource::NOFILE.get_soft().unwrap_or(u64::MAX);
    of_limit(usize::try_from(limit).unwrap_or(usize::MAX))
}

fn of_limit(limit: usize) -> usize {
    let n_free = limit.saturating_sub(RESERVED + ADMIN_CONNECTIONS_MAX);
    (n_free / 2).clamp(CONNECTIONS_MIN_DEFAULT, CONNECTIONS_MAX_DEFAULT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_take_at_most_half_of_what_is_left() {
        assert_eq!(of_limit(256), 80);
        assert_eq!(of_limit(1024), 464);
        assert_eq!(of_limit(1 << 20), CONNECTIONS_MAX_DEFAULT);
        assert_eq!(of_limit(16), CONNECTIONS_MIN_DEFAULT);
    }
}
