// Loaded into shaper (--import): a successor stops before it does anything, or once it has been given the sockets.
if (process.env.SHAPER_PREDECESSOR !== undefined) {
  const stop = () => process.kill(process.pid, 'SIGSTOP')
  if (process.env.STOP_ONCE_MET === undefined) stop()
  else process.prependListener('message', ({ verb }) => verb === 'meet' && stop())
}
