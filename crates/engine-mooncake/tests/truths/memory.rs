//! Registering memory, with and without a metadata server.

use tensorhold_testkit::Cluster;

use crate::bare::{Bare, INVALID_PARAMS, Keep, unregistered};
use crate::common::plain;

/// Memory is registered once; a second time, an overlap, or forgetting what is unknown is -600. Tensorhold keeps a table of
/// what is registered and never asks twice.
#[test]
fn registering_twice_and_forgetting_the_unknown_are_refused() {
    let cluster = plain().segment_mib(64).start().expect("a cluster");
    let bare = Bare::connect(&cluster);
    let memory = unregistered(8192);
    assert_eq!(
        bare.unregister(&memory),
        INVALID_PARAMS,
        "forgetting unknown memory used to be -600; revisit regions.rs"
    );
    assert_eq!(bare.register(&memory), 0);
    assert_eq!(
        bare.register(&memory),
        INVALID_PARAMS,
        "registering memory twice used to be -600; revisit Regions::claim"
    );
    assert_eq!(bare.unregister(&memory), 0);
    assert_eq!(bare.unregister(&memory), INVALID_PARAMS);
    assert_eq!(
        bare.register(&memory),
        0,
        "what was forgotten used to be registrable again"
    );
    assert_eq!(bare.unregister(&memory), 0);
}

/// With an HTTP metadata server, an unregistration while it is dead fails with -600, half-way: that address can never
/// again be registered or unregistered by this client. Tensorhold's `regions` puts it off until the server answers.
#[test]
fn forgetting_memory_without_its_metadata_server_spoils_the_address() {
    let cluster = Cluster::builder()
        .p2p_metadata(false)
        .segment_mib(64)
        .start()
        .expect("a cluster");
    let bare = Bare::connect(&cluster);
    let memory = unregistered(1 << 20);
    assert_eq!(bare.register(&memory), 0);
    cluster.master(0).kill().expect("killed");
    assert_eq!(
        bare.unregister(&memory),
        INVALID_PARAMS,
        "an unregistration without the metadata server used to fail; revisit `Deferred` in regions.rs"
    );
    cluster.master(0).restart().expect("restarted");
    let fresh = unregistered(1 << 20);
    crate::bare::soon("other memory can be registered again", || {
        (bare.register(&fresh) == 0).then_some(())
    });
    assert_eq!(bare.unregister(&fresh), 0);
    for _ in 0..3 {
        assert_eq!(
            (bare.register(&memory), bare.unregister(&memory)),
            (INVALID_PARAMS, INVALID_PARAMS),
            "after a failed unregistration the address used to be spoilt for ever; if it heals now, `Deferred` in \
             regions.rs is not needed any more"
        );
    }
}

/// Without a metadata server (`P2PHANDSHAKE`), registering and forgetting are local and work while the master is dead.
/// This is why Tensorhold recommends it.
#[test]
fn with_p2p_handshake_memory_needs_nobody() {
    let cluster = plain().segment_mib(64).start().expect("a cluster");
    let bare = Bare::connect(&cluster);
    let memory = unregistered(1 << 20);
    assert_eq!(bare.register(&memory), 0);
    cluster.master(0).kill().expect("killed");
    let seen = (
        bare.unregister(&memory),
        bare.register(&memory),
        bare.unregister(&memory),
    );
    assert_eq!(
        seen,
        (0, 0, 0),
        "registration used to be local with P2PHANDSHAKE; revisit regions.rs, which does not put it off then"
    );
    cluster.master(0).restart().expect("restarted");
    assert_eq!(bare.register(&memory), 0);
    crate::bare::soon("a put from that memory succeeds", || {
        (bare.put("k", &memory.whole(), Keep::Evictable) == 0).then_some(())
    });
    assert_eq!(bare.unregister(&memory), 0);
}
