# What is installed where, and the Debian package. Manual pages, completion scripts and the sample configuration
# are made by the programs themselves, so that they say what the programs do.
if(NOT TARGET okcvm OR NOT TARGET okcvmd)
  return()
endif()
include(GNUInstallDirs)

set(PACKAGING ${CMAKE_SOURCE_DIR}/tools/packaging)
set(GENERATED ${CMAKE_BINARY_DIR}/generated)
file(MAKE_DIRECTORY ${GENERATED})

# -- Generated files -----------------------------------------------------------------------------------------------
set(GENERATED_FILES)
foreach(shell bash zsh fish)
  add_custom_command(OUTPUT ${GENERATED}/okcvm.${shell}
                     COMMAND okcvm completion ${shell} > ${GENERATED}/okcvm.${shell} DEPENDS okcvm VERBATIM)
  list(APPEND GENERATED_FILES ${GENERATED}/okcvm.${shell})
endforeach()
add_custom_command(OUTPUT ${GENERATED}/okcvm.1 COMMAND okcvm help --man > ${GENERATED}/okcvm.1 DEPENDS okcvm VERBATIM)
list(APPEND GENERATED_FILES ${GENERATED}/okcvm.1)
foreach(page okcvmd.8 okcvmd.conf.5 okcvm-fs.7 okcvmd.conf)
  add_custom_command(
    OUTPUT ${GENERATED}/${page}
    COMMAND ${CMAKE_SOURCE_DIR}/tools/man/fill_in_options.sh $<TARGET_FILE:okcvmd>
            ${CMAKE_SOURCE_DIR}/tools/man/${page}.in ${PROJECT_VERSION} > ${GENERATED}/${page}
    DEPENDS okcvmd ${CMAKE_SOURCE_DIR}/tools/man/${page}.in ${CMAKE_SOURCE_DIR}/tools/man/fill_in_options.sh
    VERBATIM)
  list(APPEND GENERATED_FILES ${GENERATED}/${page})
endforeach()
# Compressed, as Debian's policy wants manual pages and the changelog.
foreach(page okcvm.1 okcvmd.8 okcvmd.conf.5 okcvm-fs.7)
  add_custom_command(OUTPUT ${GENERATED}/${page}.gz COMMAND gzip -9nkf ${GENERATED}/${page}
                     DEPENDS ${GENERATED}/${page} VERBATIM)
  list(APPEND GENERATED_FILES ${GENERATED}/${page}.gz)
endforeach()
add_custom_command(OUTPUT ${GENERATED}/changelog.gz COMMAND gzip -9nc ${PACKAGING}/changelog > ${GENERATED}/changelog.gz
                   DEPENDS ${PACKAGING}/changelog VERBATIM)
list(APPEND GENERATED_FILES ${GENERATED}/changelog.gz)
add_custom_target(documentation ALL DEPENDS ${GENERATED_FILES})

# -- Installation --------------------------------------------------------------------------------------------------
# The unit names the program by its whole path, which is known only when the prefix is.
install(CODE "set(OKCVMD \${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_SBINDIR}/okcvmd)
  configure_file(${CMAKE_SOURCE_DIR}/systemd/okcvmd.service.in ${GENERATED}/okcvmd.service @ONLY)")
install(TARGETS okcvm RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS okcvmd RUNTIME DESTINATION ${CMAKE_INSTALL_SBINDIR})
install(FILES ${GENERATED}/okcvmd.service ${CMAKE_SOURCE_DIR}/systemd/okcvmd.socket DESTINATION lib/systemd/system)
install(FILES ${CMAKE_SOURCE_DIR}/systemd/okcvm.sysusers.conf DESTINATION lib/sysusers.d RENAME okcvm.conf)
install(FILES ${CMAKE_SOURCE_DIR}/systemd/okcvm.tmpfiles.conf DESTINATION lib/tmpfiles.d RENAME okcvm.conf)
# Where okcvmd looks for it; one that is there already may have been edited.
install(CODE "if(NOT EXISTS \$ENV{DESTDIR}/etc/okcvm/okcvmd.conf)
    file(INSTALL ${GENERATED}/okcvmd.conf DESTINATION /etc/okcvm)
  endif()")
install(FILES ${GENERATED}/okcvm.1.gz DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES ${GENERATED}/okcvmd.8.gz DESTINATION ${CMAKE_INSTALL_MANDIR}/man8)
install(FILES ${GENERATED}/okcvmd.conf.5.gz DESTINATION ${CMAKE_INSTALL_MANDIR}/man5)
install(FILES ${GENERATED}/okcvm-fs.7.gz DESTINATION ${CMAKE_INSTALL_MANDIR}/man7)
install(FILES ${GENERATED}/okcvm.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME okcvm)
install(FILES ${GENERATED}/okcvm.zsh DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions RENAME _okcvm)
install(FILES ${GENERATED}/okcvm.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
install(FILES ${PACKAGING}/copyright ${GENERATED}/changelog.gz ${CMAKE_SOURCE_DIR}/tools/openapi.yaml
              ${CMAKE_SOURCE_DIR}/README.md DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/okcvm-fs)

# -- The Debian package --------------------------------------------------------------------------------------------
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME okcvm-fs)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT "okcvm-fs developers <okcvm-fs@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "private file systems for agent sessions, with snapshots")
set(CPACK_PACKAGE_DESCRIPTION
    "okcvmd mounts a private file system for every agent session. Unmodified\nprograms work in it and cannot do what the session's policy forbids. okcvm\ncreates sessions, takes snapshots of them and restores them in place.")
set(CPACK_SET_DESTDIR ON)  # /etc is outside the prefix
set(CPACK_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_PRE_BUILD_SCRIPTS ${PACKAGING}/directory_modes.cmake)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION admin)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "git, systemd")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${PACKAGING}/conffiles ${PACKAGING}/postinst ${PACKAGING}/prerm
                                       ${PACKAGING}/postrm)
include(CPack)
