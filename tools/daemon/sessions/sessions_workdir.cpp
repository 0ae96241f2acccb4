#include "tools/daemon/host/clock.h"
#include "tools/daemon/host/log.h"
#include "tools/daemon/sessions/git_remote.h"
#include "tools/daemon/sessions/sessions.h"

namespace okcvm::daemon {
namespace {

/// Whether a request names something that is to be bound.
bool asks_for_one(const WorkdirRequest& request) {
  return request.path || request.git_url || (request.policy && *request.policy != WorkdirPolicy::kManaged);
}

}  // namespace

Result<Workdirs::Opened> Sessions::find_workdir(const SessionRecord& record, const WorkdirRequest& request) {
  auto path = request.path;
  const bool is_repo_bound = record.workdir_policy == WorkdirPolicy::kRepoBound;
  if (is_repo_bound && !request.git_url) return fail(Code::kInvalidRequest, "repo-bound needs git_url");
  if (is_repo_bound && !path) {
    auto known = registry_->workdir_of_branch(record.owner_uid, normal_git_url(*request.git_url),
                                              request.branch.value_or(""), request.device_id);
    if (!known) return fail(known.error());
    if (!*known)
      return fail(Code::kNotFound, "no directory is remembered for this repository: give workdir once");
    path = (*known)->path;
  }
  if (!path)
    return fail(Code::kInvalidRequest,
                request.device_id
                    ? "no directory is remembered for this task and device: give workdir once"
                    : "this policy needs workdir, or the device_id with which it was given before");
  auto opened = workdirs_.open(*path, record.owner_uid, record.owner_gid);
  if (!opened || !is_repo_bound) return opened;
  auto remote = remote_url(opened->directory, host_caller(record.owner_uid, record.owner_gid));
  if (!remote) return fail(remote.error().code, "the workdir is no repository with a remote");
  if (normal_git_url(*remote) != normal_git_url(*request.git_url))
    return fail(Code::kForbidden, "the workdir's repository has another remote than git_url");
  return opened;
}

std::optional<WorkdirBinding> Sessions::bind_workdir(SessionRecord& record, const WorkdirRequest& asked) {
  WorkdirRequest request = asked;
  record.workdir.reset();
  record.workdir_fallback.reset();
  record.workdir_policy = WorkdirPolicy::kManaged;
  if (request.task) record.task = request.task;
  record.device_id = request.device_id;
  record.git_url = request.git_url;
  record.branch = request.branch;
  const auto task = record.task.value_or(record.id.text());

  const bool names_none = !asks_for_one(request) && !request.policy;
  const bool is_existing = request.policy == WorkdirPolicy::kExisting && !request.path;
  if ((names_none || is_existing) && request.device_id) {
    auto known = registry_->workdir_of_task(record.owner_uid, task, *request.device_id);
    if (known && *known) request.path = (*known)->path;
    if (names_none && request.path) {
      request.policy = (*known)->policy;
      if ((*known)->git_url) request.git_url = record.git_url = (*known)->git_url;
      if ((*known)->branch) request.branch = record.branch = (*known)->branch;
    }
  }
  if (!asks_for_one(request)) return std::nullopt;
  const auto policy =
      request.policy.value_or(request.git_url ? WorkdirPolicy::kRepoBound : WorkdirPolicy::kExisting);
  if (policy == WorkdirPolicy::kManaged) return std::nullopt;
  record.workdir_policy = policy;
  auto opened = find_workdir(record, request);
  if (!opened) {
    record.workdir_policy = WorkdirPolicy::kManaged;
    record.workdir_fallback =
        WorkdirFallback{request.path.value_or(request.git_url.value_or("")), opened.error().message};
    return std::nullopt;
  }
  record.workdir = opened->path;
  WorkdirBinding binding{record.owner_uid,           task, request.device_id, opened->path, policy, {}, {},
                         to_milliseconds(time_now())};
  if (request.git_url) binding.git_url = normal_git_url(*request.git_url);
  if (policy == WorkdirPolicy::kRepoBound) binding.branch = request.branch.value_or("");
  // Nobody can ask for it by task: one for all sessions, or the registry would grow with each.
  if (!record.task && !request.device_id)
    binding.task = opened->path + "\n" + binding.git_url.value_or("") + "\n" + binding.branch.value_or("");
  return binding;
}

void Sessions::remember_workdir(const Session& session, const std::optional<WorkdirBinding>& binding) {
  if (!binding) return;
  if (auto remembered = registry_->remember_workdir(*binding); !remembered)
    log_warning("session {}: its workdir is not remembered: {}", session.id().text(),
                remembered.error().message);
}

Result<void> Sessions::switch_workdir(Session& session, const WorkdirRequest& request, bool force) {
  const auto pass = session.gate().alone();
  if (!pass) return fail(pass.error());
  const auto before = session.record();
  auto record = before;
  const auto binding = bind_workdir(record, request);
  if (record.workdir_fallback)
    return fail(Code::kForbidden, "the workdir stays as it is: " + record.workdir_fallback->reason);
  if (!binding && !request.policy && before.workdir)
    return fail(
        Code::kNotFound,
        "no directory is remembered for this task and device: name one, or unbind it by the policy managed");
  const bool was_mounted = session.mount() != nullptr;
  // What programs have open does not come back with another mount: by force it goes only once all is noted.
  const auto note = [&] { return save(session, record); };
  const auto leave = [&] { return detach(session, force); };
  if (auto first = force ? note() : leave(); !first) return first;
  auto switched = [&]() -> Result<void> {
    if (auto second = force ? leave() : note(); !second) return second;
    return was_mounted ? attach(session) : Result<void>();
  }();
  if (!switched) {
    static_cast<void>(save(session, before));
    session.set_record(before);  // also where there was no room for it
    if (was_mounted && !session.mount()) attach_again(session);
    return switched;
  }
  remember_workdir(session, binding);
  tell(session, "session", "workdir");
  return {};
}

}  // namespace okcvm::daemon
