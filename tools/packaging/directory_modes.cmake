# CPack makes directories with the umask of who builds the package.
execute_process(COMMAND find "${CPACK_TEMPORARY_DIRECTORY}" -type d -exec chmod 0755 {} + COMMAND_ERROR_IS_FATAL ANY)
