// What skills sessions show.

#include <fcntl.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "fusefs/session_mount.h"
#include "tools/daemon/host/log.h"
#include "tools/daemon/sessions/session_metadata.h"
#include "tools/daemon/sessions/sessions.h"

namespace okcvm::daemon {

/// Tells of the loaded skills that a mounted session does not show; of none any more, if it shows them all.
void Sessions::note_missing_skills(const Session& session) {
  const auto mount = session.mount();
  if (!mount) return;
  std::string missing;
  for (const auto& skill : session.record().skills)
    if (const auto name = Name::parse(skill); !name || !mount->shows_skill(*name))
      missing += (missing.empty() ? "" : ", ") + skill;
  forget_affected(session.id(), Affected::Until::kShown);
  if (missing.empty()) return;
  note_affected(session,
                "the registry does not show its skills " + missing +
                    ": put them back there, or `okcvm skill unload` them",
                Affected::Until::kShown);
}

Result<bool> Sessions::load_skill(Session& session, const std::string& skill) {
  auto name = Name::parse(skill);
  if (!name) return fail(name.error());
  const auto pass = session.gate().alone();
  if (!pass) return fail(pass.error());
  auto record = session.record();
  const auto place = std::lower_bound(record.skills.begin(), record.skills.end(), skill);
  auto directory = skills_.open(*name);
  if (place != record.skills.end() && *place == skill) {
    auto shown = show_skill(session, *name, std::move(directory));
    return shown ? Result<bool>(false) : fail(shown.error());
  }
  if (!directory) return fail(directory.error());
  record.skills.insert(place, skill);
  const auto metadata = metadata_file_of(record);
  const auto mount = session.mount();
  if (mount) {
    if (auto loaded = mount->load_skill({*name, std::move(*directory)}); !loaded) return fail(loaded.error());
    mount->set_metadata(metadata);
  }
  if (auto saved = save(session, std::move(record)); !saved) {
    if (mount) {
      static_cast<void>(mount->unload_skill(*name));
      mount->set_metadata(metadata_file_of(session.record()));
    }
    return fail(saved.error());
  }
  events_.publish("skill", session.id().text(), session.owner(),
                  {EventHub::text("action", "loaded"), EventHub::text("skill", skill)});
  return true;
}

/// What stands in the registry by now under the name of a loaded skill, which had left it perhaps when the
/// session was mounted. Only by who holds the gate alone.
Result<void> Sessions::show_skill(Session& session, const Name& name, Result<FileDescriptor> directory) {
  const auto mount = session.mount();
  if (!mount) return {};
  if (!directory) return mount->shows_skill(name) ? Result<void>() : fail(directory.error());
  if (!mount->shows_skill(name)) {
    auto loaded = mount->load_skill({name, std::move(*directory)});
    if (loaded) note_missing_skills(session);
    return loaded;
  }
  auto renewed = mount->renew_skill({name, std::move(*directory)});
  if (!renewed) return fail(renewed.error());
  if (*renewed) log_info("session {}: skill {} is another directory now", session.id().text(), name.text());
  return {};
}

void Sessions::renew_skills() {
  std::map<std::string, FileDescriptor> registry;  // each is opened once
  for (const auto& session : all())
    for (const auto& skill : session->record().skills) {
      const auto name = Name::parse(skill);
      if (!name || !session->mount()) continue;
      const auto [place, is_new] = registry.try_emplace(skill);
      if (is_new)
        if (auto directory = skills_.open(*name)) place->second = std::move(*directory);
      // One of its own, for it has a place in the listing; what left the registry stays as it was.
      FileDescriptor directory(
          place->second ? ::openat(place->second.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1);
      if (!directory) continue;
      const auto pass = session->gate().alone_now();
      if (!pass) continue;  // it is looked at again in a minute
      const auto loaded = session->record().skills;
      if (!std::binary_search(loaded.begin(), loaded.end(), skill)) continue;
      if (auto shown = show_skill(*session, *name, std::move(directory)); !shown)
        log_warning("session {}: skill {}: {}", session->id().text(), skill, shown.error().message);
    }
}

Result<void> Sessions::unload_skill(Session& session, const std::string& skill) {
  auto name = Name::parse(skill);
  if (!name) return fail(name.error());
  const auto pass = session.gate().alone();
  if (!pass) return fail(pass.error());
  auto record = session.record();
  if (std::erase(record.skills, skill) == 0)
    return fail(Code::kNotFound, "the skill is not loaded: see the session's skills", "skills/" + skill);
  if (auto saved = save(session, std::move(record)); !saved) return saved;
  if (const auto mount = session.mount()) {
    auto unloaded = mount->unload_skill(*name);
    if (!unloaded && unloaded.error().code != Code::kNotFound) return unloaded;
    mount->set_metadata(metadata_file_of(session.record()));
  }
  note_missing_skills(session);
  events_.publish("skill", session.id().text(), session.owner(),
                  {EventHub::text("action", "unloaded"), EventHub::text("skill", skill)});
  return {};
}

}  // namespace okcvm::daemon
