//! `forget`: removes what is left of a store that has ended. It needs no session and no engine.

use tensorhold_core::{ErrorKind, StoreId};
use tensorhold_index::{forget, in_use};

use crate::failure::Failure;
use crate::io::Progress;
use crate::output::{Answer, object};
use crate::reach::Reach;
use crate::text::shown;

pub(crate) async fn run(reach: &Reach, store: &str, progress: &mut Progress<'_>) -> Result<Answer, Failure> {
    let parsed = store.parse::<StoreId>();
    let store = parsed.map_err(|error| Failure::of("this is no name of a store", &error))?;
    let name = shown(store.as_str());
    // Sessions that have ended and hold nothing are cleared first, as a steward does.
    let forgetting = async {
        in_use(&reach.etcd, std::slice::from_ref(&store), &*reach.clock, reach.left()).await?;
        forget(&reach.etcd, &store, &*reach.clock, reach.left()).await
    };
    let forgotten = progress.wait("forgetting the store", forgetting).await;
    match forgotten {
        Ok(true) => Ok(Answer::new(
            object!("store": store.as_str(), "forgotten": true),
            format!("store {name} is forgotten\n"),
        )),
        Ok(false) => Err(Failure::not_found(
            format!("there is no store {name}"),
            format!("the index in etcd at {} has no key of it", reach.settings.etcd_shown()),
            "`tensorhold status` shows the stores that there are",
        )),
        Err(error) if error.kind() == ErrorKind::Conflict => {
            Err(Failure::of(format!("store {name} is not forgotten"), &error))
        }
        Err(error) => Err(reach.failure(&error)),
    }
}
