#pragma once

#include "tools/cli/context.h"

/// What each verb does; named after the verb, bound to it in verbs.cpp.
namespace okcvm::cli::run {

// sessions.cpp
Outcome<void> create(Context& context);
Outcome<void> list(Context& context);
Outcome<void> info(Context& context);
Outcome<void> path(Context& context);
Outcome<void> label(Context& context);
Outcome<void> load(Context& context);
Outcome<void> unmount(Context& context);
Outcome<void> reset(Context& context);
Outcome<void> remove(Context& context);
Outcome<void> clean(Context& context);
Outcome<void> agents(Context& context);
Outcome<void> workdir(Context& context);
Outcome<void> workdirs(Context& context);

// skills.cpp
Outcome<void> skills(Context& context);
Outcome<void> skill_load(Context& context);
Outcome<void> skill_unload(Context& context);

// files.cpp
Outcome<void> upload(Context& context);
Outcome<void> read(Context& context);
Outcome<void> write(Context& context);
Outcome<void> rm(Context& context);
Outcome<void> ls(Context& context);
Outcome<void> resolve(Context& context);
Outcome<void> adapt_prompt(Context& context);

// snapshots.cpp
Outcome<void> snapshot(Context& context);
Outcome<void> snapshots(Context& context);
Outcome<void> show(Context& context);
Outcome<void> diff(Context& context);
Outcome<void> restore(Context& context);
Outcome<void> undo(Context& context);
Outcome<void> fork(Context& context);
Outcome<void> verify(Context& context);

// checkpoints.cpp
Outcome<void> checkpoint_save(Context& context);
Outcome<void> checkpoint_load(Context& context);
Outcome<void> checkpoint_list(Context& context);

// service.cpp
Outcome<void> status(Context& context);
Outcome<void> events(Context& context);
Outcome<void> top(Context& context);
Outcome<void> doctor(Context& context);

// about.cpp
Outcome<void> completion(Context& context);
Outcome<void> help(Context& context);
Outcome<void> version(Context& context);

}  // namespace okcvm::cli::run
