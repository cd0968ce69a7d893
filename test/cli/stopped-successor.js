// Loaded into shaper (--import): a successor stops before it does anything.
if (process.env.SHAPER_PREDECESSOR !== undefined) process.kill(process.pid, 'SIGSTOP')
