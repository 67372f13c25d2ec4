//! Pulls from a real local server, `tests/server/hub_server.py`, that speaks the protocols of the hubs. Its content
//! network listens on another port, which is another origin.

#[path = "hub/errors.rs"]
mod errors;
#[path = "hub/interrupted.rs"]
mod interrupted;
#[path = "hub/library.rs"]
mod library;
#[path = "hub/other_hubs.rs"]
mod other_hubs;
#[path = "hub/protocol.rs"]
mod protocol;
#[path = "hub/python.rs"]
mod python;
#[path = "hub/server.rs"]
mod server;

use std::process::ExitCode;

use oxidize_testing::Test;

/// Tests under their names.
macro_rules! tests {
    ($($test:path),* $(,)?) => {
        const TESTS: &[Test] = &[$((stringify!($test), $test as fn())),*];
    };
}

tests!(
    protocol::a_model_lands_in_the_layout_of_the_hub,
    protocol::a_second_pull_fetches_nothing,
    protocol::a_large_file_comes_over_several_connections,
    protocol::a_token_stays_with_its_origin,
    protocol::split_and_safetensors_models_come_whole,
    protocol::renamed_repositories_and_paged_listings_work,
    protocol::without_links_the_snapshot_holds_the_file,
    protocol::the_best_quantization_that_fits_is_chosen,
    protocol::offline_finds_what_is_there,
    protocol::an_unreachable_hub_leaves_the_cache,
    protocol::a_search_lists_sizes,
    protocol::tls_is_checked_and_not_left,
    errors::repositories_that_cannot_be_read,
    errors::names_that_match_nothing_or_several_files,
    errors::unsafe_file_names,
    errors::bodies_longer_than_announced,
    errors::wrong_checksums,
    errors::redirects_that_are_refused,
    errors::rate_limits,
    errors::a_full_disk,
    errors::answers_that_are_no_listings,
    errors::endless_failures_end,
    interrupted::statuses_that_pass_are_tried_again,
    interrupted::cut_connections_go_on_at_the_last_byte,
    interrupted::silent_connections_are_replaced,
    interrupted::expired_addresses_are_renewed,
    interrupted::servers_without_ranges_work,
    interrupted::a_canceled_pull_goes_on_later,
    interrupted::two_processes_share_a_download,
    interrupted::killed_downloads_resume_to_the_right_bytes,
    other_hubs::ollama,
    other_hubs::modelscope,
    other_hubs::web_servers,
    library::models_are_listed_and_removed,
    library::other_names_keep_the_bytes,
    python::huggingface_hub_reads_and_fills_the_same_cache,
);

fn main() -> ExitCode {
    server::pull_if_asked().unwrap_or_else(|| oxidize_testing::run(TESTS, &[]))
}
