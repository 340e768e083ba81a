//! The engine of a program of its own: an interpreter inside it, and Mooncake's module in that.

use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{Error, Result};
use tensorhold_engine::Engine;
use tensorhold_engine_mooncake::{MooncakeConfig, MooncakeEngine};

/// Connects an engine. `settings` are those of [`MooncakeConfig`], as JSON.
///
/// # Errors
/// `Invalid` for settings that cannot work, and those of [`MooncakeEngine::connect`].
pub fn connect(settings: &str, within: Duration) -> Result<Arc<dyn Engine>> {
    let config: MooncakeConfig = serde_json::from_str(settings).map_err(|_| {
        // The cause would repeat a value.
        Error::invalid(
            "command.engine",
            "a setting of the engine is unknown or has an invalid value",
        )
    })?;
    config.validate()?;
    let config = MooncakeConfig {
        connect_within: within,
        ..config
    };
    Ok(Arc::new(MooncakeEngine::connect(config)?))
}
