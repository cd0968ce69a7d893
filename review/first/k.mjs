// killed / late joins at distance with weights: bound check
import { simulate } from '/tmp/rv/rev/build/test/instances/simulator.js'
import { limits } from '/tmp/rv/rev/build/test/core/run.js'
import { worstBurst, allowedBurst } from '/tmp/rv/rev/build/test/instances/spacing.js'
for (let seed=1;seed<=12;seed++){
 for (const r of [5,50,1000]) for (const jit of [0,40]) {
  const stack=[limits(r,r*20,'everyone')]
  const s=await simulate({stack,count:4,seed,jitter:jit,distance:i=>[0.25,20,60,2][i],sources:[0,1,2,3].map(instance=>({instance,keys:['all'],load:{kind:'saturated',depth:Math.ceil(r/8)},...(instance==1?{onOff:{on:300,off:170}}:{}),...(instance==3?{from:1000+seed*100}:{}),hangUp:{part:.3,after:60}}))})
  await s.run(3000); const i=seed%4
  s.connections[i].down=true; await s.run(3100+seed*23); s.connections[i].down=false
  await s.run(6000); s.kill((seed+1)%4); await s.run(9000)
  const w=worstBurst(s.releases.map(x=>x.at),r/1000), al=allowedBurst(r/1000,4)
  if(w>al+1e-6) console.log('BOUND',{seed,r,jit,w,al})
 }}
console.log('done')
