#pragma once

#include <memory>

#include "policy/error.h"
#include "tools/daemon/http/message.h"
#include "tools/daemon/routes/service.h"

/// Every route's handler, by subject. They run on workers and may block.
namespace okcvm::daemon::routes {

// sessions.cpp
Result<Response> create_session(Exchange&);
Result<Response> list_sessions(Exchange&);
Result<Response> show_session(Exchange&);
Result<Response> delete_session(Exchange&);
Result<Response> mount_session(Exchange&);
Result<Response> unmount_session(Exchange&);
Result<Response> reset_session(Exchange&);
Result<Response> label_session(Exchange&);
Result<Response> session_info(Exchange&);
Result<Response> switch_workdir(Exchange&);
Result<Response> list_workdirs(Exchange&);
Result<Response> list_agents(Exchange&);
Result<Response> show_agent(Exchange&);
Result<Response> clean_sessions(Exchange&);

// skills.cpp
Result<Response> list_skills(Exchange&);
Result<Response> session_skills(Exchange&);
Result<Response> load_skill(Exchange&);
Result<Response> unload_skill(Exchange&);

// files.cpp, uploads.cpp, paths.cpp
Result<Response> get_file(Exchange&);
Result<Response> delete_file(Exchange&);
Result<std::unique_ptr<BodySink>> put_file(Exchange&);
Result<std::unique_ptr<BodySink>> upload_file(Exchange&);
Result<Response> resolve_path(Exchange&);
Result<Response> adapt_session_prompt(Exchange&);

// snapshots.cpp
Result<Response> take_snapshot(Exchange&);
Result<Response> list_snapshots(Exchange&);
Result<Response> show_snapshot(Exchange&);
Result<Response> diff_snapshots(Exchange&);
Result<Response> restore_snapshot(Exchange&);
Result<Response> undo_restore(Exchange&);
Result<Response> fork_session(Exchange&);
Result<Response> verify_snapshot(Exchange&);

// seed_routes.cpp [S0, S1]
Result<Response> seed_list_snapshots(Exchange&);
Result<Response> seed_take_snapshot(Exchange&);
Result<Response> seed_restore(Exchange&);

// checkpoints.cpp
Result<Response> save_checkpoint(Exchange&);
Result<Response> list_checkpoints(Exchange&);
Result<Response> load_checkpoint(Exchange&);
Result<Response> restore_checkpoint(Exchange&);

// service.cpp
Result<Response> show_health(Exchange&);
Result<Response> show_metrics(Exchange&);
Result<Response> follow_events(Exchange&);

}  // namespace okcvm::daemon::routes
