// E: lost answers under sustained load: does the phantom level leave again?
import { simulate } from '/tmp/rv/rev/build/test/instances/simulator.js'
import { limits } from '/tmp/rv/rev/build/test/core/run.js'
for (const blip of [0, 20, 260]) {
  const stack=[limits(200,400,'everyone')]
  const s = await simulate({stack,count:4,sources:[0,1,2,3].map(instance=>({instance,keys:['all'],load:{kind:'poisson',ms:4/(1.3*.2)}}))})
  await s.run(20000)
  const w0=s.waiting
  let t=20000
  for(let k=0;k<20&&blip;k++){ const i=k%4; s.connections[i].down=true; t+=blip; await s.run(t); s.connections[i].down=false; t+=1500; await s.run(t)}
  t=Math.max(t,60000); await s.run(t); const w1=s.waiting
  await s.run(t+60000); const w2=s.waiting
  const rel=s.releases.filter(r=>r.at>t).length/60
  console.log({blip,waitingBefore:w0,after:w1,aMinuteLater:w2,rate:rel})
}
